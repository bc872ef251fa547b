"""StateCopies: what a process remembers, twice in memory that it does not own, so that one copy is always whole."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from stretto.spaces import Array
from stretto.workers.arena import ALIGNMENT, Arena, Field, lay_out
from stretto.workers.control import fence

_NOTHING = -1
"""The version of a copy that is being written, or was never written."""


def packed(state: Any) -> bytes:
    """Return a state as one piece of memory, which `unpacked` reads."""
    parts = _parts(state)
    memory = bytearray(_size(parts))
    _write(memoryview(memory), parts)
    return bytes(memory)


def packed_size(state: Any) -> int:
    """Return how many bytes `packed` gives."""
    return _size(_parts(state))


def unpacked(memory: bytes | bytearray | memoryview) -> Any:
    """Return the state that was packed. Its arrays are views of `memory` if that can be written, else they are copies."""
    view = memoryview(memory)
    if view.readonly:
        view = memoryview(bytearray(view))
    sizes = np.frombuffer(view, np.int64, int(np.frombuffer(view, np.int64, 1)[0]), 8).tolist()
    parts, begin = [], _aligned(8 + 8 * len(sizes))
    for size in sizes:
        parts.append(view[begin : begin + size])
        begin += _aligned(size)
    return pickle.loads(parts[0], buffers=parts[1:])


def _parts(state: Any) -> list[memoryview]:
    """Return a state without its arrays, pickled, and then the memory of each array, which is not copied."""
    arrays: list[pickle.PickleBuffer] = []
    try:
        text = pickle.dumps(state, protocol=5, buffer_callback=arrays.append)
    except Exception:  # noqa: BLE001  whatever a __reduce__ raises: cloudpickle may know a way, and has its own say if not
        arrays.clear()
        text = cloudpickle.dumps(state, protocol=5, buffer_callback=arrays.append)
    return [memoryview(text), *(array.raw() for array in arrays)]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _size(parts: list[memoryview]) -> int:
    return _aligned(8 + 8 * len(parts)) + sum(_aligned(part.nbytes) for part in parts)


def _write(memory: memoryview, parts: list[memoryview]) -> None:
    head = np.frombuffer(memory, np.int64, 1 + len(parts))
    head[:] = [len(parts), *(part.nbytes for part in parts)]
    begin = _aligned(head.nbytes)
    for part in parts:
        memory[begin : begin + part.nbytes] = part
        begin += _aligned(part.nbytes)


@dataclass(frozen=True, slots=True)
class CopiesLayout:
    """Where two copies lie in an arena, each of `capacity` bytes at most; plain data."""

    offset: int
    capacity: int

    @classmethod
    def of(cls, state: Any, offset: int) -> CopiesLayout:
        """Return a layout with room for states like this one; their plain values may take somewhat more."""
        return cls(_aligned(offset), _aligned(packed_size(state) * 9 // 8 + 4096))

    @property
    def fields(self) -> tuple[list[Field], int]:
        """Where each array lies, and where they end."""
        return lay_out([((2,), np.dtype(np.int64)), ((2, self.capacity), np.dtype(np.uint8))], self.offset)


class StateCopies:
    """The last two versions of a state. The version of a copy is written last: a copy that has one is whole.

    Whoever writes version *n* leaves version *n* - 1 as it is. So a writer that dies at any moment has lost nothing.
    """

    def __init__(self, layout: CopiesLayout, arena: Arena) -> None:
        self._versions, self._copies = arena.view(layout.fields[0])

    @classmethod
    def new(cls, layout: CopiesLayout, arena: Arena) -> StateCopies:
        """Return copies that hold nothing yet, for the owner of the memory."""
        found = cls(layout, arena)
        found._versions[:] = _NOTHING
        return found

    def write(self, version: int, state: Mapping[str, Any]) -> bool:
        """Write a version in place of the one before the last; return whether there is room for it."""
        parts, copy = _parts(state), version % 2
        if _size(parts) > self._copies.shape[1]:
            return False
        self._versions[copy] = _NOTHING
        fence()
        _write(self._copies[copy].data, parts)
        fence()
        self._versions[copy] = version
        return True

    def read(self, version: int) -> Any:
        """Return one of the last two versions; its arrays are views, intact until two more are written."""
        copy = version % 2
        if (found := int(self._versions[copy])) != version:
            raise AssertionError(f"version {version} of a state is not there, but {found}")
        return unpacked(self._copies[copy].data)

    @property
    def versions(self) -> Array:
        """The versions that are there."""
        return np.sort(self._versions[self._versions != _NOTHING])
