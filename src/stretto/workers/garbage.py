"""Garbage: cycles are collected while a worker waits, not in the middle of what it does.

Python looks for cycles whenever 700 more objects were made than freed, and now and then at all objects that there are. With
100 heavy worlds in a process (312,000 objects) that is an eighth of the time, and always in the middle of a step.
"""

from __future__ import annotations

import gc
from typing import Protocol

FEWEST = 2_000
"""So many more objects than before make it worth a look while a worker waits."""

MOST = 50_000
"""So many more do so at once, by Python's own rule: a worker may be busy for long."""

GROWTH = 0.5
"""All objects are looked at once so many have stayed, as a share of those that were there."""

LEAST_GROWTH = 50_000


class Collector(Protocol):
    """What Python's `gc` can do, as far as it is needed here."""

    def collect(self, generation: int = 2) -> int: ...
    def freeze(self) -> None: ...
    def unfreeze(self) -> None: ...
    def get_count(self) -> tuple[int, int, int]: ...
    def get_freeze_count(self) -> int: ...
    def set_threshold(self, threshold0: int, threshold1: int, threshold2: int) -> None: ...


class Garbage:
    """Collects for a worker. What was built at first is set aside: it is looked at only when as much again has stayed."""

    def __init__(self, collector: Collector = gc) -> None:
        self._gc = collector
        self._stayed = 0  # objects, since all that were not set aside were looked at
        self._stayed_long = 0  # since those were looked at, too
        self._aside = 0

    def settle(self) -> None:
        """Set aside all that is there, and let Python itself collect only where very much comes together."""
        self._gc.collect()
        self._gc.freeze()
        self._aside = self._gc.get_freeze_count()
        self._gc.set_threshold(MOST, 10, 10)

    def collect_some(self) -> None:
        """Collect what there is worth it, now that there is nothing else to do."""
        made = self._gc.get_count()[0]
        if made < FEWEST:
            return
        stayed = max(0, made - self._gc.collect(0))
        self._stayed += stayed
        self._stayed_long += stayed
        most = max(LEAST_GROWTH, GROWTH * self._aside)
        if self._stayed_long > 4 * most:
            self._gc.unfreeze()
            self.settle()
            self._stayed = self._stayed_long = 0
        elif self._stayed > most:
            self._gc.collect()
            self._stayed = 0
