"""Means that do not depend on the order of the values, and what an interval around one is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]

CONFIDENCE = 0.95
"""How likely an interval has the true value in it."""


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of `values`, or None if there are none."""
    # fsum rounds once, so that the order of the values does not matter.
    return math.fsum(values) / len(values) if values else None


def interquartile_mean(values: Iterable[float]) -> float | None:
    """Return the mean of the middle half of `values`, or None if there are none.

    A quarter of them, rounded down, is left away at each end.
    """
    ordered = sorted(values)
    cut = len(ordered) // 4
    return mean(ordered[cut : len(ordered) - cut])
