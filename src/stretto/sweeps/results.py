"""What came of a sweep: of each candidate its returns by seed, their interquartile mean, and what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.evaluation.report.wording import interval_text, short_number
from stretto.evaluation.statistics.averages import Interval, interquartile_mean
from stretto.evaluation.statistics.bootstrap import Bootstrap
from stretto.seeding.streams import SeedTree
from stretto.sweeps.space import Point, point_text
from stretto.training.curves import final_return
from stretto.training.report import stopped_agents


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried: the summary of the run of each seed, and of those that failed why."""

    number: int
    settings: Point
    runs: Mapping[int, Mapping[str, Any]]
    failures: Mapping[int, str]

    @classmethod
    def of(cls, number: int, settings: Point, outcomes: Mapping[int, Mapping[str, Any] | str]) -> Candidate:
        """Return a candidate of what came of its seeds: a summary, or what ended the run."""
        runs = {seed: one for seed, one in outcomes.items() if not isinstance(one, str)}
        failures = {seed: one for seed, one in outcomes.items() if isinstance(one, str)}
        for seed, one in runs.items():
            if stopped := stopped_agents(one):
                failures[seed] = "; ".join(f"{agent} was stopped in {why}" for agent, why in stopped.items())
            elif final_return(one) is None:
                failures[seed] = "no episode has ended"
        return cls(number, settings, runs, dict(sorted(failures.items())))

    @property
    def returns(self) -> dict[int, float]:
        """The return of each run that did not fail, by seed."""
        found = {seed: final_return(one) for seed, one in self.runs.items() if seed not in self.failures}
        return {seed: value for seed, value in found.items() if value is not None}

    @property
    def score(self) -> float | None:
        """The interquartile mean of returns over seeds; `None` if a run failed."""
        return None if self.failures else interquartile_mean(self.returns.values())


@dataclass(frozen=True)
class SweepReport:
    """A sweep that is over.

    `candidates` are in the order of their scores, the best first; those with a failed run come last. `intervals` are those
    of the scores, at 95%, by number; there is none of a single seed.
    """

    mission: str
    engine: str
    seeds: Sequence[int]
    candidates: Sequence[Candidate]
    folder: Path
    intervals: Mapping[int, Interval] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, mission: str, engine: str, seeds: Sequence[int], tried: Sequence[Candidate], folder: Path
    ) -> SweepReport:
        """Rank candidates."""

        def place(one: Candidate) -> tuple[bool, float, int]:
            return one.score is None, -(one.score or 0.0), one.number

        return cls(mission, engine, seeds, sorted(tried, key=place), folder, score_intervals(tried))

    @property
    def best(self) -> Candidate | None:
        """The candidate with the highest score; `None` if each has a run that failed."""
        first = self.candidates[0]
        return None if first.score is None else first

    def __str__(self) -> str:
        lines = [f"{self.mission}: {len(self.candidates)} candidates, seeds {list(self.seeds)}"]
        for one in self.candidates:
            named = point_text(one.settings)
            score = f"{short_number(one.score)} {interval_text(self.intervals.get(one.number))}"
            lines.append(f"{one.number}: {named}: {score if one.score is not None else 'failed'}")
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """Return what `summary.json` holds."""
        return {
            "mission": self.mission,
            "engine": self.engine,
            "seeds": list(self.seeds),
            "best": None if self.best is None else self.best.number,
            "candidates": [
                {
                    "number": one.number,
                    "settings": one.settings,
                    "iqm": one.score,
                    "interval": self.intervals.get(one.number) if one.score is not None else None,
                    "returns": {str(seed): value for seed, value in one.returns.items()},
                    "failures": {str(seed): why for seed, why in one.failures.items()},
                }
                for one in self.candidates
            ],
        }


def score_intervals(candidates: Sequence[Candidate]) -> dict[int, Interval]:
    """Return the intervals of the scores of candidates, by number."""
    return iqm_intervals({one.number: list(one.returns.values()) for one in candidates if one.score is not None})


def iqm_intervals(samples: Mapping[int, Sequence[float]]) -> dict[int, Interval]:
    """Return the intervals of the interquartile means of several samples, by key."""
    bootstrap = Bootstrap(SeedTree(0).child("sweep"))
    for key, numbers in samples.items():
        bootstrap.add_iqm(key, {"runs": numbers})
    return {key: found for key, found in bootstrap.intervals().items() if isinstance(key, int)}
