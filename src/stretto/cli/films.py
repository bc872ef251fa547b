"""`--video`: what cannot be filmed is said before anything is played; films are made after it, and put into the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stretto.cli.results import prints_on_stderr
from stretto.cli.text import say
from stretto.errors import UsageError
from stretto.evaluation.films.film_files import film_format
from stretto.evaluation.films.video import films, unfilmable
from stretto.evaluation.plan import Plan
from stretto.evaluation.report.report import Report


def tell_unfilmable(plan: Plan) -> dict[str, str]:
    """Say which missions cannot be filmed, and return them with the reasons.

    Raises:
        UsageError: if none can be filmed, or nothing here can make films.
    """
    film_format()
    with prints_on_stderr():
        without = unfilmable(plan)
    if len(without) == len(plan.missions):
        name, why = next(iter(without.items()))
        raise UsageError(f"none of the missions can be filmed; of {name}, because {why}; leave out --video")
    for name, why in without.items():
        say(f"stretto: there will be no film of {name}: {why}")
    return without


def film(plan: Plan, report: Report, count: int, folder: Path, without: Mapping[str, str]) -> None:
    """Film the first `count` episodes of each mission and policy, say where the films are, and put them into the report."""
    with prints_on_stderr():
        for one in films(plan, report.records, count, folder, without):
            mission, label, episode = one.key
            say(f"film: {one.path}" if one.path else f"no film of {mission}, {label}, episode {episode}: {one.why}")
    report.save(folder)
