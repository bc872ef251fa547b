"""Replay: transitions of each agent, drawn from the agent's own stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stretto.errors import UsageError
from stretto.spaces import Array
from stretto.storage.block import Block, Column, Piece, Rows
from stretto.storage.buffer import Buffer
from stretto.storage.decisions import DECISION_COLUMNS, Decisions, TransitionRange
from stretto.storage.memory import RingLayout
from stretto.storage.transition_snapshot import TransitionSnapshot


@dataclass(frozen=True)
class TransitionLayout:
    """How much a `TransitionBuffer` holds: the last `steps` of each agent, written in pieces of `longest_piece` rows at most.

    The last observation of an episode takes a step as well. `stack` is how many consecutive frames make an observation: each
    frame is stored once.
    """

    block: Block
    steps: int
    longest_piece: int
    stack: int = 1

    @cached_property
    def ring(self) -> RingLayout:
        """Where everything lies."""
        back = (Column("back", (), np.dtype(np.int32)),) if self.stack > 1 else ()
        lanes = self.block.lanes
        ring = RingLayout(self.block, (*DECISION_COLUMNS, *back), -(-self.steps // lanes), self.longest_piece)
        table = Column("decisions", (len(self.block.agents), ring.rows * lanes), np.dtype(np.int32))
        return replace(ring, tables=(table,))

    @property
    def settings(self) -> Mapping[str, Any]:
        """What else must be equal for one buffer to load what another one saved."""
        return {"stack": self.stack}


class TransitionBuffer(Buffer[TransitionLayout]):
    """Keeps the last steps of every agent, for learners that draw from them again and again.

    `extend` writes; `snapshot` shows what is there, without a copy, until it is released. For a learner in another
    process, `take` gives the range of a snapshot, which is all that `TransitionSnapshot` needs there.
    """

    def __init__(self, layout: TransitionLayout, **memory: Any) -> None:
        super().__init__(layout, **memory)
        block = layout.block
        self._decisions = Decisions(self._ring)
        self._ended = np.zeros((block.lanes, len(block.agents)), np.bool_)  # whose last observation comes next

    def extend(self, piece: Piece) -> None:
        """Write a piece behind the one before.

        Raises:
            UsageError: if it does not fit the layout, or does not begin with what the one before ended with.
            SnapshotHeld: if a snapshot that shows what it would overwrite was not released in time. Nothing was
                written.
        """
        rows = self.layout.block.rows(piece)
        self._check_continues(rows, provisional=piece.provisional)
        ring = self._ring
        ring.make_room(rows.count)
        ring.put_rows(rows, self._decisions.columns(rows))
        back = self._decisions.record(rows)
        if self.layout.stack > 1:
            ring.put(ring.head, {"back": back})
        self._ended = rows.ended[-1].copy()
        ring.head += rows.count

    def _check_continues(self, rows: Rows, *, provisional: bool) -> None:
        """Refuse a piece that was not what came next: its transitions from the piece before would be wrong.

        What was provisional follows nothing: until agents act again, it is not known what they saw then.
        """
        going_on = self._ended if provisional else (self._decisions.open_row >= 0) & rows.acted[0] | self._ended
        place = self._ring.head % self.layout.ring.rows
        for column in self.layout.block.observation_columns:
            before = self.memory.rows[column.name][place][going_on]
            if before.tobytes() != rows.columns[column.name][0][going_on].astype(column.dtype, copy=False).tobytes():
                raise UsageError(
                    f"a piece must begin with the next_observations of the one before, got another {column.name} for an "
                    f"agent whose last observation was still to come; mark the end of an episode that was given up as "
                    f"truncated, and give its last observation a row of its own"
                )

    def take(self) -> TransitionRange:
        """Hold what is there now; return its range, which can be sent to another process."""
        ring, decisions = self._ring, self._decisions
        hold = ring.hold()
        # A stack reaches back to rows before its own: these must be there too.
        reach = (self.layout.stack - 1) * decisions.longest_gap if ring.oldest else 0 * decisions.longest_gap
        first, last = decisions.first_number(ring.oldest + reach), decisions.count
        unfinished = decisions.unfinished(first)
        return TransitionRange(
            hold, self.layout.stack, ring.head, tuple(first.tolist()), tuple(last.tolist()), unfinished
        )

    def snapshot(self) -> TransitionSnapshot:
        """Hold and show what is there now."""
        return TransitionSnapshot(self.memory, self.take())

    def _counters(self) -> dict[str, Any]:
        return super()._counters() | {"decisions": self._decisions.counters(), "ended": self._ended.tolist()}

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        super()._set_counters(counters)
        self._ended = np.array(counters["ended"], np.bool_)
        self._decisions.set_counters(counters["decisions"])

    def _arrays(self, first: int) -> dict[str, list[Array]]:
        own = {"decisions before": self._ring.unrolled(self._decisions.before, first)}
        return super()._arrays(first) | own | {"decisions": [self.memory.tables["decisions"]]}
