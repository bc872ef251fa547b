"""Adaptation: how well agents do in each episode of a trial, as words and as a part of a run's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.evaluation.report.curves import Curve, curves
from stretto.evaluation.report.page import figures
from stretto.evaluation.report.page_elements import table
from stretto.evaluation.report.wording import interval_text, short_number
from stretto.evaluation.statistics.averages import Interval
from stretto.evaluation.statistics.bootstrap import Bootstrap
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array

BY_EPISODE = "by_episode"
"""What of an evaluation has the mean of each episode of a trial."""


def adaptation(returns: Array) -> list[dict[str, float]]:
    """Return the mean of each column of (trials, episodes), and where its 95% interval lies."""
    bootstrap = Bootstrap(SeedTree(0).child("trials"))
    for episode, column in enumerate(returns.T):
        bootstrap.add_mean(episode, {"trials": column.tolist()})
    found, means = bootstrap.intervals(), returns.mean(0).tolist()
    return [
        {"return": value, "low": found[episode][0], "high": found[episode][1]} if found else {"return": value}
        for episode, value in enumerate(means)
    ]


def _interval(one: Mapping[str, float]) -> Interval | None:
    return (one["low"], one["high"]) if "low" in one else None


def adaptation_text(evaluation: Mapping[str, Any]) -> str:
    """Return the means of an evaluation by episode of a trial, with their intervals."""
    found = [f"{short_number(one['return'])} {interval_text(_interval(one))}" for one in evaluation[BY_EPISODE]]
    return f"by episode of a trial: {', '.join(found)}"


def adaptation_section(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return what a page shows of adaptation: curves of the first and of the last evaluation, and the last in numbers."""
    last = evaluations[-1][BY_EPISODE]
    several = evaluations if len(evaluations) < 2 else (evaluations[0], evaluations[-1])
    plot = curves(
        "Adaptation",
        "The mean return in each episode of a trial",
        "episode of the trial",
        [_curve(one, number) for number, one in enumerate(several)],
    )
    numbers = [
        [str(episode), short_number(one["return"]), interval_text(_interval(one))]
        for episode, one in enumerate(last, 1)
    ]
    note = (
        "The mean return in each episode of a trial of a held-out task. The band is its 95% interval over trials. The table "
        "has the last evaluation."
    )
    return figures(note, [plot]) + table(["episode", "return", "95% interval"], numbers)


def _curve(evaluation: Mapping[str, Any], colour: int) -> Curve:
    found = evaluation[BY_EPISODE]
    values = [one["return"] for one in found]
    lows, highs = ([one.get(side, one["return"]) for one in found] for side in ("low", "high"))
    places = np.arange(1.0, len(values) + 1).tolist()
    return Curve(f"after {evaluation['steps']:,} steps", colour, places, values, lows, highs)
