"""Replay: transitions of each agent, drawn from the agent's own stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stretto.errors import UsageError
from stretto.spaces import Array
from stretto.storage.block import Block, Column, Piece, Rows
from stretto.storage.buffer import Buffer
from stretto.storage.decisions import Decisions, TransitionRange
from stretto.storage.memory import RingLayout
from stretto.storage.transition_snapshot import TransitionSnapshot


@dataclass(frozen=True)
class TransitionLayout:
    """How much a `TransitionBuffer` holds: the last `steps` of each agent, written in pieces of `longest_piece` rows at most.

    `stack` is how many consecutive frames make an observation: each frame is stored once. Last observations have room
    for one end in every `steps_an_end` steps: if episodes are shorter for long, fewer steps are kept.
    """

    block: Block
    steps: int
    longest_piece: int
    stack: int = 1
    steps_an_end: int = 8

    @cached_property
    def ring(self) -> RingLayout:
        """Where everything lies."""
        flags = [Column("reward", (), np.dtype(np.float32)), Column("terminated", (), np.dtype(np.bool_))]
        flags.append(Column("final", (), np.dtype(np.int32)))
        always = self.block.always_acts
        if not always:
            flags.append(Column("hop", (), np.dtype(np.int32)))
        if self.stack > 1:
            flags.append(Column("back", (), np.dtype(np.uint8 if always else np.int32)))
        capacity, lanes = -(-self.steps // self.block.lanes), self.block.lanes
        finals = -(-capacity * lanes // self.steps_an_end)
        ring = RingLayout(self.block, tuple(flags), capacity, self.longest_piece, finals)
        if always:
            return ring
        table = Column("decisions", (len(self.block.agents), ring.rows * lanes), np.dtype(np.int32))
        return RingLayout(self.block, tuple(flags), capacity, self.longest_piece, finals, (table,))

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
        self._decisions = None if block.always_acts else Decisions(self._ring)
        self._fresh = np.ones((block.lanes, len(block.agents)), np.bool_)  # whose next row begins an episode

    def extend(self, piece: Piece) -> None:
        """Write a piece behind the one before.

        Raises:
            UsageError: if it does not fit the layout, or does not begin with what the one before ended with.
            SnapshotHeld: if a snapshot that shows what it would overwrite was not released in time. Nothing was
                written.
        """
        rows = self.layout.block.rows(piece)
        self._check_continues(rows)
        ring = self._ring
        ring.make_room(rows.count, rows.ended)
        finals = ring.put_finals(rows.ended, rows.finals)
        ring.put(ring.head, rows.columns)
        ring.put(ring.head + rows.count, {name: values[None] for name, values in rows.following.items()})
        if self._decisions is not None:
            ring.put(ring.head, self._decisions.columns(rows))
            back = self._decisions.record(rows, finals)
        else:
            ring.put(ring.head, {"reward": rows.rewards, "terminated": rows.terminated, "final": finals})
            back = ~np.concatenate([self._fresh[None], rows.ended[:-1]])
        if self.layout.stack > 1:
            ring.put(ring.head, {"back": back})
        self._fresh = rows.ended[-1] if rows.acted is None else self._without_decision()
        ring.head += rows.count

    def _without_decision(self) -> Array:
        assert self._decisions is not None
        return self._decisions.open_row < 0

    def _check_continues(self, rows: Rows) -> None:
        """Refuse a piece that was not what came next: its transitions from the piece before would be wrong."""
        going_on = ~self._fresh if rows.acted is None else ~self._fresh & rows.acted[0]
        place = self._ring.head % self.layout.ring.rows
        for column in self.layout.block.observation_columns:
            before = self.memory.rows[column.name][place][going_on]
            if before.tobytes() != rows.columns[column.name][0][going_on].astype(column.dtype, copy=False).tobytes():
                raise UsageError(
                    f"a piece must begin with the next_observations of the one before, got another {column.name} for an "
                    f"agent whose episode had not ended; mark the end of an episode that was given up as truncated"
                )

    def take(self) -> TransitionRange:
        """Hold what is there now; return its range, which can be sent to another process."""
        ring, decisions = self._ring, self._decisions
        hold = ring.hold()
        oldest = ring.oldest()
        gaps = 1 if decisions is None else decisions.longest_gap
        # A stack reaches back to rows before its own: these must be there too.
        complete = np.where(oldest > 0, oldest + (self.layout.stack - 1) * gaps, 0)
        if decisions is None:
            last = np.full_like(oldest, ring.head * self.layout.block.lanes)
            first = np.minimum(complete * self.layout.block.lanes, last)
        else:
            first, last = decisions.first_number(complete), decisions.count
        unfinished = ((),) * len(oldest) if decisions is None else decisions.unfinished(first)
        return TransitionRange(
            hold, self.layout.stack, ring.head, tuple(first.tolist()), tuple(last.tolist()), unfinished
        )

    def snapshot(self) -> TransitionSnapshot:
        """Hold and show what is there now."""
        return TransitionSnapshot(self.memory, self.take())

    def _counters(self) -> dict[str, Any]:
        own = {} if self._decisions is None else {"decisions": self._decisions.counters()}
        return super()._counters() | own | {"fresh": self._fresh.tolist()}

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        super()._set_counters(counters)
        self._fresh = np.array(counters["fresh"], np.bool_)
        if self._decisions is not None:
            self._decisions.set_counters(counters["decisions"])

    def _arrays(self, first: int) -> dict[str, list[Array]]:
        if self._decisions is None:
            return super()._arrays(first)
        own = {"decisions before": self._ring.unrolled(self._decisions.before, first)}
        return super()._arrays(first) | own | {"decisions": [self.memory.tables["decisions"]]}
