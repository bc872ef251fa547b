"""Whole sequences (rollouts, trials), one behind the other, and chunks of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stretto.errors import UsageError
from stretto.spaces import Array
from stretto.storage.block import Block, Column, Piece, Rows
from stretto.storage.buffer import Buffer
from stretto.storage.memory import RingLayout
from stretto.storage.sequence_snapshot import SequenceRange, SequenceSnapshot


@dataclass(frozen=True)
class SequenceLayout:
    """How much a `SequenceBuffer` holds: the last `steps`, in sequences of `longest` steps at most.

    Rows count as steps: an episode takes one more than it has, for its last observation. That of the last episode in a
    sequence does not count for `longest`. So many times as many sequences as are written at once, `pieces`, can be written
    `ahead` of a snapshot without waiting for it.
    """

    block: Block
    steps: int
    longest: int
    pieces: int = 1
    ahead: int = 1

    def __post_init__(self) -> None:
        if self.block.lanes != 1:
            raise UsageError(
                f"whole sequences must lie one behind the other in a single lane, got {self.block.lanes} lanes; use "
                f"Block(lanes=1) and write them in the order of their indices"
            )

    @cached_property
    def ring(self) -> RingLayout:
        """Where everything lies."""
        ahead = self.ahead * self.pieces
        table = Column("sequences", (self.steps + ahead * (self.longest + 1), 2), np.dtype(np.int64))
        return RingLayout(self.block, self.block.outcome_columns, self.steps, self.longest, (table,), ahead)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What else must be equal for one buffer to load what another one saved."""
        return {}


class SequenceBuffer(Buffer[SequenceLayout]):
    """Keeps whole sequences of different lengths, each observation once."""

    def __init__(self, layout: SequenceLayout, **memory: Any) -> None:
        super().__init__(layout, **memory)
        self._count = 0

    def extend(self, piece: Piece) -> None:
        """Write a whole sequence, or, of a piece with several lanes, one after the other that of each lane.

        If nothing follows it, its last row is the one that follows its last step.

        Raises:
            UsageError: if it does not fit the layout.
            SnapshotHeld: if a snapshot that shows what it would overwrite was not released in time. Nothing was
                written of that lane.
        """
        block, lanes = self.layout.block, np.shape(piece.rewards)[1]
        rows = (block if lanes == 1 else replace(block, lanes=lanes)).rows(piece)
        for lane in range(lanes):
            self._write(rows if lanes == 1 else rows.lane(lane))

    def _write(self, rows: Rows) -> None:
        ring, steps = self._ring, rows.count - (rows.following is None)
        ring.make_room(steps)
        ring.put_rows(rows, rows.outcome)
        table = self.memory.tables["sequences"]
        table[self._count % len(table)] = ring.head, steps
        self._count += 1
        ring.head += steps + 1

    def take(self) -> SequenceRange:
        """Hold what is there now; return its range, which can be sent to another process."""
        hold = self._ring.hold()
        table = self.memory.tables["sequences"]
        kept = range(max(0, self._count - len(table)), self._count)
        first = bisect_left(kept, self._ring.oldest, key=lambda number: int(table[number % len(table), 0]))
        return SequenceRange(hold, kept.start + first, self._count)

    def snapshot(self) -> SequenceSnapshot:
        """Hold and show what is there now."""
        return SequenceSnapshot(self.memory, self.take())

    def _counters(self) -> dict[str, Any]:
        return super()._counters() | {"count": self._count}

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        super()._set_counters(counters)
        self._count = int(counters["count"])

    def _arrays(self, first: int) -> dict[str, list[Array]]:
        return super()._arrays(first) | {"sequences": [self.memory.tables["sequences"]]}
