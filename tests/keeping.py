"""A user who keeps what they were given, writes into it, and drops it again, as a seed says."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from stretto.testing import difference


class Keeps:
    """What is held, at most so many at once, and a copy of what each was when it was given or written into last."""

    def __init__(self, seed: int, longest: int) -> None:
        self._random, self._longest = np.random.default_rng(seed), longest
        self._held: list[tuple[Any, Any]] = []

    def take(self, given: Any) -> None:
        """Hold what was given, or write into it first; drop something else."""
        if self._random.random() < 0.3:
            _write(given)
        if self._random.random() < 0.8:
            self._held.append((given, copy.deepcopy(given)))
        while len(self._held) > self._longest:
            self._held.pop(self._random.integers(len(self._held)))
        self.check()

    def check(self) -> None:
        """Check that all is as its holder has it."""
        for number, (one, copied) in enumerate(self._held):
            assert (found := difference(one, copied)) is None, f"number {number} of what was held has changed: {found}"


def _write(given: Any) -> None:
    if isinstance(given, np.ndarray):
        given[..., -1:] = 33
    elif isinstance(given, dict | tuple):
        for part in given.values() if isinstance(given, dict) else given:
            _write(part)
