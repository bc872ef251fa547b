"""Whole sequences (rollouts, trials), one behind the other, and chunks of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stretto.errors import UsageError
from stretto.spaces import Array
from stretto.storage.block import Block, Column, Piece
from stretto.storage.buffer import Buffer
from stretto.storage.memory import RingLayout
from stretto.storage.sequence_snapshot import SequenceRange, SequenceSnapshot


@dataclass(frozen=True)
class SequenceLayout:
    """How much a `SequenceBuffer` holds: the last `steps`, in sequences of `longest` steps at most.

    A sequence takes a step more than it has, for the observation that follows its last one. Last observations of episodes
    that end inside a sequence have room for one in every `steps_an_end` steps.
    """

    block: Block
    steps: int
    longest: int
    steps_an_end: int = 8

    def __post_init__(self) -> None:
        if self.block.lanes != 1:
            raise UsageError(
                f"whole sequences must lie one behind the other in a single lane, got {self.block.lanes} lanes; use "
                f"Block(lanes=1) and write them in the order of their indices"
            )

    @cached_property
    def ring(self) -> RingLayout:
        """Where everything lies."""
        table = Column("sequences", (self.steps + self.longest + 1, 2), np.dtype(np.int64))
        finals = -(-self.steps // self.steps_an_end)
        return RingLayout(self.block, self.block.outcome_columns, self.steps, self.longest, finals, (table,))

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
        """Write a whole sequence. Its `next_observations` are what agents saw last who had not ended before.

        Raises:
            UsageError: if it does not fit the layout.
            SnapshotHeld: if a snapshot that shows what it would overwrite was not released in time. Nothing was
                written.
        """
        rows = self.layout.block.rows(piece)
        ring = self._ring
        ring.make_room(rows.count, rows.ended)
        inner, last = rows.ended.copy(), rows.ended[-1, 0]
        inner[-1] = False
        count = int(np.count_nonzero(inner))  # those of the last row are the last ones
        finals = ring.put_finals(inner, {name: values[:count] for name, values in rows.finals.items()})
        closing = {name: values.copy() for name, values in rows.following.items()}
        for name, values in rows.finals.items():
            closing[name][0, last] = values[count:]
        ring.put(ring.head, rows.columns | rows.outcome(finals))
        ring.put(ring.head + rows.count, {name: values[None] for name, values in closing.items()})
        table = self.memory.tables["sequences"]
        table[self._count % len(table)] = ring.head, rows.count
        self._count += 1
        ring.head += rows.count + 1

    def take(self) -> SequenceRange:
        """Hold what is there now; return its range, which can be sent to another process."""
        hold = self._ring.hold()
        table = self.memory.tables["sequences"]
        kept = range(max(0, self._count - len(table)), self._count)
        first = [
            kept.start + bisect_left(kept, row, key=lambda number: int(table[number % len(table), 0]))
            for row in self._ring.oldest().tolist()
        ]
        return SequenceRange(hold, tuple(first), self._count)

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
