"""Counters: how many steps and episodes there were, counted when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from gymnasium.vector import AutoresetMode

from stretto.spaces import Array

_PUT_OFF = 64
"""How many steps are counted at once: counting each by itself took as long as two steps of CartPole."""


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
        self._ended: Array = np.zeros(count, np.bool_)
        self._flags: list[bytes] = []

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
        # Both at once: Ctrl-C between the two would leave one without the other.
        self._flags.append(terminated.tobytes() + truncated.tobytes())
        if len(self._flags) >= _PUT_OFF:
            self.settle()

    def begin(self, slots: Iterable[int]) -> None:
        """Take note of slots that have begun their next episode."""
        for slot in slots:
            self._episodes[slot] += 1

    def over(self, ended: Array) -> None:
        """Take note of which slots' episodes are over now, other than by a step of all."""
        self.settle()
        self._ended = ended

    def settle(self) -> Array:
        """Count what was put off; return how many episodes began in each slot meanwhile."""
        if not self._flags:
            return np.zeros(self._count, np.int64)
        both: Array = np.frombuffer(b"".join(self._flags), np.bool_).reshape(-1, 2, self._count)
        flags: Array = both[:, 0] | both[:, 1]
        self._flags.clear()
        before = np.concatenate([self._ended[None], flags[:-1]])
        self._counts.episodes += int(flags.sum())
        self._counts.steps += flags.size
        began: Array
        match self._mode:
            case AutoresetMode.NEXT_STEP:
                self._counts.steps -= int(before.sum())
                began = before.sum(axis=0)
            case AutoresetMode.SAME_STEP:
                began = flags.sum(axis=0)
            case _:
                began = np.zeros(self._count, np.int64)
        self._episodes += began
        self._ended = flags[-1]
        return began
