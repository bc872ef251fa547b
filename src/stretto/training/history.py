"""History: the figures of a run's intervals, as many as a page can show. `metrics.jsonl` has all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MOST_ROWS = 256
"""How many records are kept at most: a run of millions of intervals must not fill the memory."""

Row = Mapping[str, Any]


class History:
    """Keeps records that are evenly spread over a run, the last one, and all evaluations.

    Once there are more than `MOST_ROWS`, every other one is left out, and of those to come as many. So which are kept
    depends on nothing but how many there were.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._kept: list[Row] = []
        self._last: Row | None = None
        self._stride, self._count = 1, 0
        self.evaluations: list[Row] = []
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Take in the record of an interval."""
        self._last = row
        if "evaluation" in row:
            self.evaluations.append(row["evaluation"])
        if self._count % self._stride == 0:
            self._kept.append(row)
        if len(self._kept) > MOST_ROWS:
            del self._kept[1::2]
            self._stride *= 2
        self._count += 1

    @property
    def rows(self) -> list[Row]:
        """The records that are kept, in their order."""
        if self._last is None or self._kept[-1] is self._last:
            return list(self._kept)
        return [*self._kept, self._last]
