"""Curves of runs over their steps: of one, or the mean of several with a band."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.evaluation.report.curves import Curve
from stretto.evaluation.statistics.averages import Interval, mean
from stretto.evaluation.statistics.bootstrap import Bootstrap
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array

MOST_POINTS = 120
"""How many points a curve has: more cannot be told apart."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class SeedHistory:
    """A run of one seed: rows of its `metrics.jsonl`, its summary, and its evaluations on held-out episodes."""

    seed: int
    rows: Sequence[Row]
    summary: Mapping[str, Any]
    evaluations: Sequence[Row] = ()


def mean_of_agents(row: Row) -> float | None:
    """Return the mean return of agents in a row or a summary; `None` before an episode has ended."""
    return mean([one["return"] for one in row["agents"].values() if one["return"] is not None])


def final_return(summary: Mapping[str, Any]) -> float | None:
    """Return the mean return of a run: in held-out episodes, if there were some."""
    return float(summary["evaluation"]["return"]) if "evaluation" in summary else mean_of_agents(summary)


def over_runs(runs: Sequence[SeedHistory], of: Callable[[Row], float | None], name: str) -> Curve:
    """Return a curve of something in the rows of one run, or of several."""
    return mean_curve([series(run.rows, of) for run in runs], name)


def series(rows: Sequence[Row], of: Callable[[Row], float | None]) -> tuple[Array, Array]:
    """Return the steps and the values of those rows that have one."""
    found = [(row["steps"], value) for row in rows if (value := of(row)) is not None]
    steps, values = zip(*found, strict=True) if found else ((), ())
    return np.array(steps, np.float64), np.array(values, np.float64)


def mean_curve(runs: Sequence[tuple[Array, Array]], name: str) -> Curve:
    """Return a curve of one run, or the mean of several at common steps, with a band."""
    found = [(steps, values) for steps, values in runs if len(steps)]
    if not found:
        return Curve(name, 0, (), ())
    begin, end = max(steps[0] for steps, _ in found), max(steps[-1] for steps, _ in found)
    longest = max(len(steps) for steps, _ in found)
    places = found[0][0] if len(found) == 1 else np.linspace(begin, end, min(longest, MOST_POINTS))
    if len(places) > MOST_POINTS:
        places = places[np.linspace(0, len(places) - 1, MOST_POINTS).round().astype(np.intp)]
    values = np.array([np.interp(places, steps, numbers) for steps, numbers in found])
    bands = mean_intervals(values) if len(found) > 1 else []
    lows, highs = zip(*bands, strict=True) if bands else ((), ())
    return Curve(name, 0, places.tolist(), values.mean(0).tolist(), lows, highs)


def mean_intervals(values: Array) -> list[Interval]:
    """Return the interval of the mean of each column."""
    bootstrap = Bootstrap(SeedTree(0).child("curves"))
    for place, column in enumerate(values.T):
        bootstrap.add_mean(place, {"seeds": column.tolist()})
    found = bootstrap.intervals()
    return [found[place] for place in range(values.shape[1])]
