"""What an evaluation found, as records: policies on missions, pairs of policies, and the policies of a mix."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stretto.evaluation.statistics.averages import Interval
from stretto.evaluation.statistics.scales import References, Scale

Failed = Literal["exclude", "worst"]


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """How one label did on one mission, or on all of them (`mission` is None).

    `episodes` are those that count, `failures` those that failed, `left_out` those that do not count, because they
    failed here or for another label. Rewards are per agent and episode. `score` is the interquartile mean of normalized
    rewards, where there are reference policies. On several missions together there are no rewards and no statistics: only
    scores can be pooled. Steps and `statistics` (of the game: a mean, and over how many episodes that report it), also
    those by name and agent, are of counted episodes that did not fail; `overdue` are the deadlines struck in all episodes;
    `timing` is of all that did not fail and were timed. None stands where there is no episode to tell.
    """

    mission: str | None
    label: str
    episodes: int
    failures: int
    left_out: int
    reward: float | None
    iqm: float | None
    interval: Interval | None
    steps: float | None
    overdue: int
    statistics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    timing: Mapping[str, float] = field(default_factory=dict)
    score: float | None = None
    score_interval: Interval | None = None
    agent_statistics: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """How one policy of a mix did on one mission, or on all of them (`mission` is None); `label` is that of the mix.

    `episodes` are those that count, did not fail, and in which any agent followed the policy. Rewards are means over
    these agents in an episode; on several missions together there are none. `rating` is explained in `ratings`, and is
    None for a policy that met no other.
    """

    mission: str | None
    label: str
    policy: str
    episodes: int
    reward: float | None
    iqm: float | None
    interval: Interval | None
    rating: float | None = None
    rating_interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How `label` did against `baseline` in the episodes that both played, on one mission or on all (None).

    `improvement` is the share of episodes in which `label` had the higher reward, a tie being one half; `difference`
    is how much higher it was on average: in rewards on one mission, in normalized scores on several, where there are such
    scores. `mix` is None where each played its own episodes with one seed, else the label of the mix in which both were.
    """

    mission: str | None
    label: str
    baseline: str
    episodes: int
    improvement: float | None
    improvement_interval: Interval | None
    difference: float | None
    difference_interval: Interval | None
    mix: str | None = None

    def swapped(self) -> Comparison:
        """Return the same comparison, seen from the other side."""
        return dataclasses.replace(
            self,
            label=self.baseline,
            baseline=self.label,
            improvement=None if self.improvement is None else 1 - self.improvement,
            improvement_interval=_mirrored(self.improvement_interval, 1.0),
            difference=None if self.difference is None else -self.difference,
            difference_interval=_mirrored(self.difference_interval, 0.0),
        )


def _mirrored(interval: Interval | None, total: float) -> Interval | None:
    return None if interval is None else (total - interval[1], total - interval[0])


@dataclass(frozen=True, slots=True)
class Summary:
    """What an evaluation found: every label on every mission, every label on all of them, and every pair of labels.

    `by_policy` has, for labels that are mixes, every policy on every mission, and on all of them; `within_mixes` has every
    pair of policies that played together. `normalize` names the reference policies, and `scales` has, by mission, their
    mean rewards, which are scores of 0 and 1; a mission on which they cannot be told apart has none.
    """

    missions: tuple[str, ...]
    labels: tuple[str, ...]
    failed: Failed
    seed: int
    resamples: int
    by_mission: tuple[LabelSummary, ...]
    overall: tuple[LabelSummary, ...]
    comparisons: tuple[Comparison, ...]
    by_policy: tuple[PolicySummary, ...] = ()
    within_mixes: tuple[Comparison, ...] = ()
    normalize: References | None = None
    scales: Mapping[str, Scale] = field(default_factory=dict)

    @property
    def unscaled(self) -> tuple[str, ...]:
        """The missions that have no scale, although scores were asked for."""
        return tuple(name for name in self.missions if self.normalize is not None and name not in self.scales)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Summary:
        """Return the summary that `as_json` was called on, also after a trip through JSON."""
        rows: dict[str, type[LabelSummary | Comparison | PolicySummary]] = {
            "by_mission": LabelSummary,
            "overall": LabelSummary,
            "comparisons": Comparison,
            "by_policy": PolicySummary,
            "within_mixes": Comparison,
        }
        tables = {
            name: tuple(row(**_with_tuples(found)) for found in values.get(name, ())) for name, row in rows.items()
        }
        scales = {name: tuple(ends) for name, ends in values.get("scales", {}).items()}
        return cls(**{**_with_tuples(values), **tables, "scales": scales})


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
