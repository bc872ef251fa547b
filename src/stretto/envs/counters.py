"""Counters: how many steps and episodes there were, by the flags of each step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from gymnasium.vector import AutoresetMode

from stretto.spaces import Array

_PUT_OFF, _PUT_OFF_SLOTS = 64, 1 << 21
"""How many steps are counted at once, and how many slots in them.

Counting each step by itself took as long as two steps of CartPole.
With 65,536 slots, flags of 64 steps no longer fit into the caches: 32 take a third of the time.
"""


@dataclass(slots=True)
class Statistics:
    """Counts since construction. `steps` are real ones: a step that only resets is none."""

    steps: int = 0
    episodes: int = 0
    restarts: int = 0
    replayed_steps: int = 0
    truncations: int = 0


class Counters:
    """Counts from the flags of each step; `counts` and `episodes` are right whenever they are read."""

    def __init__(self, count: int, mode: AutoresetMode) -> None:
        self._count = count
        self._mode = mode
        self._counts = Statistics()
        self._episodes = np.zeros(count, np.int64)
        self._put_off = max(1, min(_PUT_OFF, _PUT_OFF_SLOTS // count))
        # Row 0: which episodes were over before. After it, a row for each step that is not counted yet.
        self._over = np.zeros((1 + self._put_off, count), np.bool_)
        self._rows = list(self._over)
        self._kept = self._passed = 0
        self._none_over = False  # whether all episodes are known to go on

    @property
    def counts(self) -> Statistics:
        """The counts, to be read and added to."""
        self.settle()
        return self._counts

    @property
    def episodes(self) -> Array:
        """The number of each slot's episode, to be read and written."""
        self.settle()
        return self._episodes

    def stepped(self, terminated: Array, truncated: Array) -> None:
        """Take note of a step of all slots."""
        kept = self._kept + 1
        np.logical_or(terminated, truncated, self._rows[kept])
        self._kept = kept  # last: a step that Ctrl-C has cut short does not count
        self._none_over = False
        if kept == self._put_off:
            self.settle()

    def stepped_on(self, terminated: Array, truncated: Array) -> None:
        """Take note of a step of all slots in which no episode ended: where none was over, there are no flags to keep."""
        if not self._none_over:
            self.stepped(terminated, truncated)
        self._passed += self._none_over
        self._none_over = True

    def begin(self, slots: Iterable[int]) -> None:
        """Take note of slots that have begun their next episode."""
        for slot in slots:
            self._episodes[slot] += 1

    def over(self, ended: Array) -> None:
        """Take note of which slots' episodes are over now, other than by a step of all."""
        self.settle()
        self._rows[0][:] = ended
        self._none_over = False

    def settle(self) -> Array:
        """Count what was put off; return how many episodes began in each slot meanwhile."""
        self._counts.steps += self._passed * self._count
        kept, self._kept, self._passed = self._kept, 0, 0
        if not kept:
            return np.zeros(self._count, np.int64)
        before, flags = self._over[:kept], self._over[1 : kept + 1]
        self._counts.episodes += int(np.count_nonzero(flags))
        self._counts.steps += flags.size
        began: Array
        match self._mode:
            case AutoresetMode.NEXT_STEP:
                self._counts.steps -= int(np.count_nonzero(before))
                began = _count_rows(before)
            case AutoresetMode.SAME_STEP:
                began = _count_rows(flags)
            case _:
                began = np.zeros(self._count, np.int64)
        self._episodes += began
        self._rows[0][:] = flags[-1]
        return began


def _count_rows(flags: Array) -> Array:
    """Return how many of a few rows are true, by column; numpy needs a tenth of the time if it counts in bytes."""
    counts: Array = np.add.reduce(flags.view(np.uint8), axis=0, dtype=np.uint8 if len(flags) < 256 else np.int64)
    return counts
