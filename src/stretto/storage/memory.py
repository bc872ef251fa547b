"""The memory of a buffer: a ring of rows, and the words that hold on to a snapshot.

An observation is stored once: what follows a row is always the observation of the next row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stretto.spaces import Array
from stretto.storage.block import Block, Column
from stretto.workers.arena import Arena, Field, lay_out
from stretto.workers.control import fence

MOST_HOLDS = 64


@dataclass(frozen=True)
class RingLayout:
    """Everything that a process needs to know to find the arrays of a buffer in its memory.

    `capacity` rows are kept. Beyond them there is room for the longest piece, or for as many as are written `ahead`, so that
    a writer need not wait for a snapshot that was taken before them, and for the observations that follow last rows.
    """

    block: Block
    columns: tuple[Column, ...]
    capacity: int
    longest_piece: int
    tables: tuple[Column, ...] = ()
    ahead: int = 1

    @property
    def rows(self) -> int:
        """The rows of the ring."""
        return self.capacity + self.ahead * (self.longest_piece + 1)

    @property
    def row_columns(self) -> tuple[Column, ...]:
        """All columns that have a value in each row."""
        block = self.block
        return (*block.observation_columns, *block.action_columns, *block.extra_columns, *self.columns)

    @cached_property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return self.fields(0)[1]

    def fields(self, offset: int) -> tuple[list[Field], int]:
        """Return where each array lies, and where they end: holds, rows, tables."""
        agents = len(self.block.agents)
        shapes: list[tuple[tuple[int, ...], np.dtype[Any]]] = [((MOST_HOLDS,), np.dtype(np.int64))]
        shapes += [((self.rows, self.block.lanes, agents, *c.shape), c.dtype) for c in self.row_columns]
        shapes += [(table.shape, table.dtype) for table in self.tables]
        return lay_out(shapes, offset)


@dataclass(frozen=True, slots=True)
class Hold:
    """Keeps a writer from overwriting what a snapshot shows; plain data, to be sent to whoever reads it."""

    place: int
    serial: int


class RingMemory:
    """The arrays of a buffer in an arena, for its owner and for whoever else reads it."""

    def __init__(self, layout: RingLayout, arena: Arena, offset: int = 0) -> None:
        self.layout = layout
        arrays = iter(arena.view(layout.fields(offset)[0]))
        self.holds: Array = next(arrays)
        self.rows: dict[str, Array] = {column.name: next(arrays) for column in layout.row_columns}
        self.tables: dict[str, Array] = {table.name: next(arrays) for table in layout.tables}
        # Sampling takes values by one number, not three: half the time of an index with three arrays.
        self.flat = {name: array.reshape(-1, *array.shape[3:]) for name, array in self.rows.items()}

    def release(self, hold: Hold) -> None:
        """Give up a snapshot; in any process that has this memory, and as often as one likes."""
        fence()  # whatever was read of the snapshot was read before
        if self.holds[hold.place] == hold.serial:
            self.holds[hold.place] = 0
