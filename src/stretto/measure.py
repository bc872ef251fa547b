"""Timing and probing: one copy, used by every automatic choice."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a call takes: the median wall-clock time, and the share of it that this thread computed."""

    seconds: float
    busy: float
    calls: int


def time_calls(function: Callable[[], object], *, budget_seconds: float, least: int = 3, most: int = 2_000) -> Timing:
    """Call `function` until `budget_seconds` are used up, and say how long a call took.

    The median, not the mean: a first call imports, and another process may get in between.
    """
    took: list[float] = []
    began, busy_began = time.perf_counter(), time.thread_time()
    while len(took) < most:
        start = time.perf_counter()
        function()
        end = time.perf_counter()
        took.append(end - start)
        if end - began > budget_seconds and len(took) >= least:
            break
        if end - began > 2 * budget_seconds:
            break
    wall, busy = time.perf_counter() - began, time.thread_time() - busy_began
    return Timing(sorted(took)[len(took) // 2], min(1.0, busy / wall) if wall else 1.0, len(took))
