"""Timing and probing: one copy, used by every automatic choice."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from stretto.budget import core_seconds


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a call takes: the median wall-clock time, and for which share of it this thread wanted to compute."""

    seconds: float
    busy: float
    calls: int


def time_calls(function: Callable[[], object], *, budget_seconds: float, least: int = 3, most: int = 2_000) -> Timing:
    """Call `function` until `budget_seconds` are used up, and say how long a call took.

    The median, not the mean: a first call imports, and another process may get in between. What it computed is read
    off the fastest quarter of the calls: on a loaded machine the others waited for a core, not for the world. Where the
    system tells how long that was for all of them, it counts as computing.
    """
    before = core_seconds()
    took: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(took) < most:
        computed = time.thread_time()
        start = time.perf_counter()
        function()
        end = time.perf_counter()
        took.append((end - start, time.thread_time() - computed))
        if end - began > budget_seconds and len(took) >= least:
            break
        if end - began > 2 * budget_seconds:
            break
    wanted = _wanted(before, core_seconds()) / (time.perf_counter() - began)
    took.sort()
    fastest = took[: -(-len(took) // 4)]
    wall, busy = sum(wall for wall, _ in fastest), sum(busy for _, busy in fastest)
    return Timing(took[len(took) // 2][0], min(1.0, max(wanted, busy / wall)) if wall else 1.0, len(took))


def _wanted(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float:
    """Return for how long this thread has computed or waited for a core meanwhile; 0 where nobody says."""
    return 0.0 if before is None or after is None else sum(after) - sum(before)


def duration(seconds: float) -> str:
    """Write a time so that one can read it: three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
