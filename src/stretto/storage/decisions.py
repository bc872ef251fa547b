"""Decisions: which row each reward, end and successor belongs to, since agents do not act in every row.

What an agent decides in a row lasts until it acts again, or ends. All that comes of it (rewards, added up, and the end)
is written to the row of the decision, however many pieces later it comes. Decisions are numbered by agent, in the order
of rows and lanes, so that sampling need not look for the rows in which an agent acted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.spaces import Array
from stretto.storage.block import Column, Rows
from stretto.storage.memory import Hold

if TYPE_CHECKING:
    from stretto.storage.ring import Ring

_NONE = -1

DECISION_COLUMNS = (
    Column("reward", (), np.dtype(np.float32)),
    Column("terminated", (), np.dtype(np.bool_)),
    Column("ended", (), np.dtype(np.bool_)),
    Column("hop", (), np.dtype(np.int32)),
)
"""What came of each decision; `hop` is how many rows later that was seen, and 0 until it is known."""


@dataclass(frozen=True, slots=True)
class TransitionRange:
    """What a snapshot shows: plain data, to be sent to whoever reads it.

    Decisions of each agent are numbered in the order of rows and lanes, for ever. Those from `first` to `last` (exclusive)
    are there, and what followed them is known, except for `unfinished` ones. `end` is the row after the last.
    """

    hold: Hold
    stack: int
    end: int
    first: tuple[int, ...]
    last: tuple[int, ...]
    unfinished: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> list[int]:
        """How many transitions each agent has."""
        return [b - a - len(u) for a, b, u in zip(self.first, self.last, self.unfinished, strict=True)]


class Decisions:
    """Keeps the decisions of a block's agents."""

    def __init__(self, ring: Ring) -> None:
        layout = ring.memory.layout
        agents = len(layout.block.agents)
        self._ring = ring
        self.count = np.zeros(agents, np.int64)
        self.longest_gap = np.ones(agents, np.int64)
        """The most rows from one decision to the next within an episode, by agent."""
        self.open_row = np.full((layout.block.lanes, agents), _NONE, np.int64)
        self._open_number = np.full((layout.block.lanes, agents), _NONE, np.int64)
        self.before = np.zeros((layout.rows, agents), np.int64)
        """How many decisions there were before each row."""

    def unfinished(self, first: Array) -> tuple[tuple[int, ...], ...]:
        """Return the decisions of each agent, from `first` on, of which it is not known yet what followed, in order."""
        mine = (np.sort(numbers[numbers >= start]) for numbers, start in zip(self._open_number.T, first, strict=True))
        return tuple(tuple(numbers.tolist()) for numbers in mine)

    def first_number(self, rows: Array) -> Array:
        """Return, for each agent, its first decision in its row of `rows` or later."""
        places = rows % len(self.before), np.arange(len(rows))
        return np.where(rows < self._ring.head, self.before[places], self.count)

    def columns(self, rows: Rows) -> dict[str, Array]:
        """Return what the rows of decisions hold before it is known what came of them."""
        return {column.name: np.zeros(rows.rewards.shape, column.dtype) for column in DECISION_COLUMNS}

    def record(self, rows: Rows) -> Array:
        """Write what came of decisions; return how far back each row's decision before it is, 0 if there is none.

        To be called when the rows themselves are written, and before the head moves.
        """
        acted = rows.acted
        flat, now = self._ring.memory.flat, self._ring.head + np.arange(rows.count)[:, None, None]
        decided = np.maximum.accumulate(np.where(acted, now, _NONE), axis=0)
        over = np.maximum.accumulate(np.where(rows.ended, now, _NONE), axis=0)
        over_before = _shifted(over)
        owner = self._owner(decided, over_before)
        earlier = self._owner(_shifted(decided), over_before)

        earned = owner >= 0
        # One after the other, so that the sum does not depend on how experience was cut into pieces.
        np.add.at(flat["reward"], self._places(owner)[earned], rows.rewards[earned].astype(np.float32))
        gaps = np.where(acted & (earlier >= 0), now - earlier, 0)
        follows = gaps > 0
        flat["hop"][self._places(earlier)[follows]] = gaps[follows]
        ends = rows.ended & earned
        where = self._places(owner)[ends]
        flat["ended"][where] = True
        flat["terminated"][where] = rows.terminated[ends]
        flat["hop"][where] = (now + 1 - owner)[ends]

        self.longest_gap = np.maximum(self.longest_gap, gaps.max(axis=(0, 1)))
        self._number(acted, self._owner(decided[-1], over[-1]))
        return gaps

    def _owner(self, decided: Array, over: Array) -> Array:
        """Return the rows of decisions that are still open, given the last decision and the last end of this piece."""
        carried = np.where((decided < 0) & (over < 0), self.open_row, _NONE)
        return np.where(decided > over, decided, carried)

    def _places(self, rows: Array) -> Array:
        layout = self._ring.memory.layout
        lanes, agents = layout.block.lanes, len(layout.block.agents)
        return (rows % layout.rows) * (lanes * agents) + np.arange(lanes * agents).reshape(lanes, agents)

    def _number(self, acted: Array, open_row: Array) -> None:
        """Give numbers to the decisions of a piece."""
        count, lanes, agents = acted.shape
        head, size = self._ring.head, self._ring.memory.layout.rows
        by_agent = acted.reshape(-1, agents)
        numbers = self.count + np.cumsum(by_agent, axis=0) - 1
        who, which = np.nonzero(by_agent.T)
        table = self._ring.memory.tables["decisions"]
        table[who, numbers[which, who] % (size * lanes)] = (head * lanes + which) % (size * lanes)
        self.before[(head + np.arange(count)) % size] = (numbers + 1 - by_agent)[::lanes]
        grid = numbers.reshape(acted.shape)
        lane, agent = np.indices(open_row.shape)
        inside = grid[np.maximum(open_row - head, 0), lane, agent]
        self._open_number = np.where(open_row >= head, inside, np.where(open_row >= 0, self._open_number, _NONE))
        self.open_row = open_row
        self.count = numbers[-1] + 1

    # ---- saving ----

    def counters(self) -> dict[str, Any]:
        """Return what `set_counters` needs to go on from here."""
        names = ("count", "longest_gap", "open_row", "_open_number")
        return {name.lstrip("_"): getattr(self, name).tolist() for name in names}

    def set_counters(self, counters: Mapping[str, Any]) -> None:
        self.count, self.longest_gap, self.open_row, self._open_number = (
            np.array(counters[name], np.int64) for name in ("count", "longest_gap", "open_row", "open_number")
        )


def _shifted(rows: Array) -> Array:
    """Return what held one row before; nothing, in the first row."""
    return np.concatenate([np.full_like(rows[:1], _NONE), rows[:-1]])
