"""What all buffers have in common: memory of their own or in an arena, and how they are saved and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from stretto.checkpoint import Content, read_folder, write_folder
from stretto.errors import UsageError
from stretto.safetensors import read_safetensors, safetensors
from stretto.spaces import Array
from stretto.storage.block import Block
from stretto.storage.memory import RingLayout, RingMemory
from stretto.storage.ring import Patience, Ring
from stretto.storage.snapshot import Held
from stretto.workers.arena import Arena


class BufferLayout(Protocol):
    """What a buffer holds, and how much: plain data, from which a process that has the memory finds everything."""

    @property
    def ring(self) -> RingLayout:
        """Where everything lies."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What else must be equal for one buffer to load what another one saved."""


L = TypeVar("L", bound=BufferLayout)


def within_bytes(nbytes: int, layout: Callable[[int], L]) -> L:
    """Return the `layout(steps)` with the most steps that takes `nbytes` at most.

    Raises:
        UsageError: if even one step would take more.
    """
    if layout(1).ring.nbytes > nbytes:
        raise UsageError(
            f"a buffer must have room for a step and for the longest piece, {layout(1).ring.nbytes} bytes, got {nbytes}; "
            f"give it more, or write shorter pieces"
        )
    fits, too_many = 1, 2
    while layout(too_many).ring.nbytes <= nbytes:
        fits, too_many = too_many, 2 * too_many
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if layout(middle).ring.nbytes <= nbytes else (fits, middle)
    return layout(fits)


class Buffer(Generic[L]):
    """The owner of a buffer: the only one who writes.

    Its memory is private, or `shared`: then another process that gets the descriptor `arena.fd` and the layout reads it
    without a copy. Several buffers may lie in one arena that was allocated for all of them, each from its `offset` on.
    """

    def __init__(
        self,
        layout: L,
        *,
        shared: bool = False,
        arena: Arena | None = None,
        offset: int = 0,
        patience: Patience | None = None,
    ) -> None:
        self.layout = layout
        self._owns_arena = arena is None
        if arena is None:
            arena = Arena.create(shared)
            try:
                rows = f"the {layout.ring.capacity * layout.ring.block.lanes:,} steps of a buffer"
                arena.allocate(layout.ring.nbytes, rows, "keep fewer steps, or smaller observations")
            except BaseException:
                arena.close()
                raise
        self.arena = arena
        self.memory = RingMemory(layout.ring, arena, offset)
        self._ring = Ring(self.memory, patience or Patience())

    @property
    def block(self) -> Block:
        """Whose experience it keeps."""
        return self.layout.ring.block

    def drop(self, taken: Held) -> None:
        """Release what another process held that has died, or that takes too long."""
        self.memory.release(taken.hold)

    def close(self) -> None:
        """Give up the descriptor; what still looks at the memory keeps it."""
        if self._owns_arena:
            self.arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- saving ----

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save all that is kept, in place of what was saved there; a kill at any time leaves the old or the new."""
        write_folder(folder, self.contents())

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Become what was saved, bit by bit; snapshots that were held are not held any more.

        Raises:
            UsageError: if it was saved by a buffer with another layout, or is damaged (`DamagedCheckpoint`).
        """
        self.restore(read_folder(folder))

    def contents(self, name: str = "buffer") -> dict[str, Content]:
        """Return the files to save, for a folder that holds more than this buffer."""
        counters = self._counters()
        arrays = safetensors(self._arrays(counters["first"]))
        text = json.dumps({"layout": self._signature(), "counters": counters})
        return {f"{name}.safetensors": arrays, f"{name}.json": text}

    def restore(self, files: Mapping[str, Path], name: str = "buffer") -> None:
        """Become what `contents` gave, once it is in files."""
        saved = json.loads(files[f"{name}.json"].read_bytes())
        theirs, ours = saved["layout"], json.loads(json.dumps(self._signature()))
        if different := sorted(key for key in theirs | ours if theirs.get(key) != ours.get(key)):
            found = ", ".join(f"{key} {theirs.get(key)!r}, not {ours.get(key)!r}" for key in different)
            raise UsageError(f"a buffer must have the layout of the one that was saved, got {found}; make it alike")
        self._set_counters(saved["counters"])
        read_safetensors(files[f"{name}.safetensors"], into=self._arrays(saved["counters"]["first"]))

    def replica(self) -> dict[str, Any]:
        """Return all that another buffer of this layout needs to `become` this one, with what snapshots still show."""
        counters = self._counters() | {"first": max(0, self._ring.head + 1 - self.layout.ring.rows)}
        return {"counters": counters, "arrays": self._arrays(counters["first"])}

    def become(self, replica: Mapping[str, Any]) -> None:
        """Become what `replica` has returned, perhaps in another process; what is written next goes on from there."""
        self._set_counters(replica["counters"])
        mine = self._arrays(replica["counters"]["first"])
        for name, parts in replica["arrays"].items():
            for target, part in zip(mine[name], parts, strict=True):
                target[...] = part

    def _signature(self) -> dict[str, Any]:
        ring = self.layout.ring
        return {
            "kind": type(self).__name__,
            "agents": ring.block.agents,
            "lanes": ring.block.lanes,
            "columns": [(column.name, column.shape, column.dtype.str) for column in ring.row_columns],
            "capacity": ring.capacity,
            "longest_piece": ring.longest_piece,
            **self.layout.settings,
        }

    def _counters(self) -> dict[str, Any]:
        return self._ring.counters()

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        self._ring.set_counters(counters)

    def _arrays(self, first: int) -> dict[str, list[Array]]:
        return self._ring.arrays(first)
