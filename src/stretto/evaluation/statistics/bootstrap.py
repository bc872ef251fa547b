"""Stratified bootstrap: 95% intervals of interquartile means and of means, of many sets of numbers at once.

Numbers are drawn anew within each stratum (a mission), and an interval lies between percentiles of what the draws give.
Sets with strata of the same names and sizes share their draws: policies play the same episodes. Each interval is what it
would be by itself; only those of several sets are not independent of each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.evaluation.statistics.averages import CONFIDENCE, Interval
from stretto.seeding.streams import SeedTree

Strata = Mapping[str, Sequence[float]]
Shape = tuple[tuple[str, int], ...]
Numbers = NDArray[np.float64]

RESAMPLES = 2_000
_MOST_COLUMNS = 500  # resamples at a time, each lot from a stream of its own: what is computed stays in the cache
_MOST_COUNTS = 1 << 20  # in such a lot, where there are very many numbers to draw from


@dataclass(slots=True)
class _Group:
    """Sets of numbers with strata of the same names and sizes."""

    iqms: dict[Hashable, Numbers] = field(default_factory=dict)
    means: dict[Hashable, Numbers] = field(default_factory=dict)


class Bootstrap:
    """Takes sets of numbers in, each under a key, and then computes the intervals of all of them together."""

    def __init__(self, stream: SeedTree, resamples: int = RESAMPLES) -> None:
        self._stream, self._resamples = stream, resamples
        self._groups: dict[Shape, _Group] = {}

    def add_iqm(self, key: Hashable, strata: Strata) -> None:
        """Ask for the interval of the interquartile mean of all numbers together."""
        if group := self._group(strata):
            group.iqms[key] = _joined(strata)

    def add_mean(self, key: Hashable, strata: Strata) -> None:
        """Ask for the interval of the mean of all numbers together."""
        if group := self._group(strata):
            group.means[key] = _joined(strata)

    def _group(self, strata: Strata) -> _Group | None:
        if not any(len(numbers) > 1 for numbers in strata.values()):
            return None  # there is nothing to draw from
        shape = tuple(sorted((name, len(numbers)) for name, numbers in strata.items() if len(numbers)))
        return self._groups.setdefault(shape, _Group())

    def intervals(self) -> dict[Hashable, Interval]:
        """Return the intervals by key; there is none where no stratum has two numbers."""
        found: dict[Hashable, Interval] = {}
        for shape, group in self._groups.items():
            found.update(_intervals(shape, group, self._stream, self._resamples))
        return found


def _joined(strata: Strata) -> Numbers:
    return np.concatenate([np.asarray(strata[name], np.float64) for name in sorted(strata)])


def _intervals(shape: Shape, group: _Group, stream: SeedTree, resamples: int) -> Iterator[tuple[Hashable, Interval]]:
    iqms = [_Iqm(numbers) for numbers in group.iqms.values()]
    total = sum(count for _, count in shape)
    sets = np.array(list(group.means.values())).reshape(len(group.means), total)
    # From the lowest number on, so that numbers which are all equal have exactly themselves for an interval.
    lowest = sets.min(axis=1, keepdims=True)
    above = sets - lowest
    found_iqms: list[list[Numbers]] = [[] for _ in iqms]
    found_sums = []
    for counts in _draw_counts(shape, stream, resamples):
        for iqm, found in zip(iqms, found_iqms, strict=True):
            found.append(iqm.of(counts))
        # Not `@`: what BLAS adds up first, and so the last digit, depends on its number of threads.
        found_sums.append(np.einsum("ij,kj->ki", counts.T.copy(), above))
    if iqms:
        yield from zip(group.iqms, _percentiles(np.array([np.concatenate(found) for found in found_iqms])), strict=True)
    if group.means:
        means = lowest + np.concatenate(found_sums, axis=1) / total
        yield from zip(group.means, _percentiles(means), strict=True)


class _Iqm:
    """The interquartile means of resamples of some numbers, which are sorted only once."""

    def __init__(self, numbers: Numbers) -> None:
        self._total = len(numbers)
        self._cut = self._total // 4
        self._order = np.argsort(numbers, kind="stable")
        ordered = numbers[self._order]
        self._lowest, self._gaps = ordered[0], np.diff(ordered)

    def of(self, counts: Numbers) -> Numbers:
        """Return the IQM of each column, which says how often each number was drawn."""
        kept_end = self._total - self._cut
        # A kept number is the lowest of all plus the gaps below it: count the kept ones above each gap. All in one
        # array, because making another one takes longer than filling it; and row by row, in two thirds of the time that
        # `add.accumulate` takes along this axis.
        above = counts[self._order[:-1]]
        for before, row in itertools.pairwise(above):
            np.add(row, before, out=row)
        np.clip(above, self._cut, kept_end, out=above)
        np.subtract(kept_end, above, out=above)
        iqms: Numbers = self._lowest + np.einsum("ji,j->i", above, self._gaps) / (kept_end - self._cut)
        return iqms


def _draw_counts(shape: Shape, stream: SeedTree, resamples: int) -> Iterator[Numbers]:
    """Yield, some resamples at a time, how often each number (a row) is drawn in each of them (a column)."""
    lot = max(1, min(_MOST_COLUMNS, _MOST_COUNTS // sum(count for _, count in shape)))
    for first in range(0, resamples, lot):
        columns = min(lot, resamples - first)
        yield np.concatenate([_counts(stream.child(name, first), count, columns) for name, count in shape])


def _counts(stream: SeedTree, count: int, columns: int) -> Numbers:
    drawn = stream.generator().integers(count, size=(count, columns)) * columns + np.arange(columns)
    return np.bincount(drawn.ravel(), minlength=count * columns).reshape(count, columns).astype(np.float64)


def _percentiles(resampled: Numbers) -> list[Interval]:
    """Return the interval of each row."""
    lows, highs = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
    return list(zip(lows.tolist(), highs.tolist(), strict=True))
