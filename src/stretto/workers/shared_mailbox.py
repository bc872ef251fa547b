"""Mailboxes: shared memory through which a worker is given messages and answers them, without a system call."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from stretto.workers.arena import Arena, Field, lay_out
from stretto.workers.base import Factory, Port, Worker
from stretto.workers.mail import dump
from stretto.workers.requests import Request, Seat
from stretto.workers.supervisor import Supervisor

_HEAD_BYTES = 8

_IN_THE_BOX = 1
"""The signal, and the note, that say that there is something in a box."""


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


class Mailboxes:
    """A pair of boxes for each seat of a supervisor: plain messages and their answers of up to a size go through them.

    One message at a time goes to a seat. What is larger goes through its worker's socket.
    """

    def __init__(self, supervisor: Supervisor, factories: Sequence[Factory], size: int) -> None:
        self._supervisor = supervisor
        fields, total = lay_out([((size + _HEAD_BYTES,), np.dtype(np.uint8))] * (2 * len(factories)))
        supervisor.arena.allocate(total)
        for i, factory in enumerate(factories):
            pair = fields[2 * i : 2 * i + 2]
            supervisor.add_seat(partial(_BoxedService, factory, pair)).complete = _Pair(supervisor.arena, pair)

    def ask(self, seat: Seat, message: object, doing: str, limit_seconds: float | None) -> Request:
        """Send plain data to a worker that was there before; if it has died, that is the answer."""
        data, box = dump(message), cast(_Pair, seat.complete).given

        def issue(worker: Worker) -> int:
            if len(data) > box.size:
                return worker.post(data)
            box.put(data)
            return worker.signal(_IN_THE_BOX)

        return self._supervisor.ask(seat, issue, doing, limit_seconds, fresh=False)


class _Pair:
    """The boxes of a seat, for what it is given and for its answer; its supervisor drops them with their memory."""

    def __init__(self, arena: Arena, fields: Sequence[Field]) -> None:
        self.given, self.answer = map(Box, arena.view(fields))

    def __call__(self, worker: Worker, number: int, value: Any) -> Any:
        """Take an answer out of its box, where a note says that it lies there."""
        return value if worker.note_of(number) is None else self.answer.take()


class _BoxedService:
    """Makes a service inside a worker that also takes messages from its box: any signal says that there is one."""

    def __init__(self, factory: Factory, fields: Sequence[Field], port: Port) -> None:
        self._port, self._boxes = port, _Pair(port.arena, fields)
        inner = factory(port)
        self.handle, self.close = inner.handle, inner.close

    def signal(self, code: int) -> object:
        value = self.handle(self._boxes.given.take())
        data = dump(value)
        if len(data) > self._boxes.answer.size:
            return value  # by mail, then
        self._boxes.answer.put(data)
        self._port.note(_IN_THE_BOX)
        return None
