"""Boxes: shared memory through which a place of a pool is given messages and answers them, without a system call."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stretto.workers.arena import Arena, Field, lay_out
from stretto.workers.base import Port, Service
from stretto.workers.mail import dump

_HEAD_BYTES = 8


class Box:
    """Room for one pickled object; its first word is the length. Who puts and who takes is for others to agree on."""

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        view = memoryview(cast(Any, memory))
        self._length = view[:_HEAD_BYTES].cast("q")
        self._room = view[_HEAD_BYTES:]
        self.size = len(self._room)

    def put(self, data: bytes) -> None:
        self._room[: len(data)] = data
        self._length[0] = len(data)

    def take(self) -> Any:
        """Return the object; what it is made of is copied, so that the next may be put."""
        return pickle.loads(self._room[: self._length[0]])


def lay_out_boxes(places: int, size: int) -> tuple[list[Sequence[Field]], int]:
    """Return two fields a place, for what it is given and for its answer; and the bytes that all take."""
    fields, total = lay_out([((size + _HEAD_BYTES,), np.dtype(np.uint8))] * (2 * places))
    return [fields[2 * i : 2 * i + 2] for i in range(places)], total


def boxes(arena: Arena, fields: Sequence[Field]) -> tuple[Box, Box]:
    """Return the two boxes of a place."""
    given, answer = arena.view(fields)
    return Box(given), Box(answer)


@dataclass(frozen=True, slots=True)
class Boxed:
    """Builds a service inside a worker that also takes messages from its box: any signal says that there is one."""

    factory: Callable[[Port], Service]
    fields: Sequence[Field]

    def __call__(self, port: Port) -> Service:
        return _BoxedService(self.factory(port), *boxes(port.arena, self.fields))


class _BoxedService:
    def __init__(self, inner: Service, given: Box, answer: Box) -> None:
        self._inner, self._given, self._answer = inner, given, answer
        self.handle = inner.handle
        self.close = inner.close

    def signal(self, code: int) -> object:
        value = self._inner.handle(self._given.take())
        data = dump(value)
        if len(data) > self._answer.size:
            return value  # by mail, then
        self._answer.put(data)
        return None
