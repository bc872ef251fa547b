"""Policies that played together: what each got, how they did against each other, and how strong that makes them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stretto.evaluation.records import EpisodeRecord
from stretto.evaluation.statistics.averages import Interval, interquartile_mean, mean
from stretto.evaluation.statistics.bootstrap import Bootstrap
from stretto.evaluation.statistics.comparisons import compare_all, with_intervals
from stretto.evaluation.statistics.ratings import Rating, rate
from stretto.evaluation.statistics.summary import Comparison, PolicySummary

Episode = Mapping[str, float]
"""By policy, the mean reward of the agents that followed it."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The policies of a mix, on each mission and on all; and each pair of them. Intervals of rewards are to come."""

    policies: tuple[PolicySummary, ...] = ()
    pairs: tuple[Comparison, ...] = ()

    def with_intervals(self, intervals: Mapping[Hashable, Interval]) -> Mix:
        """Return the same with the intervals that `bootstrap` was asked for."""
        return Mix(
            tuple(
                replace(row, interval=intervals.get(_key(row.mission, row.label, row.policy))) for row in self.policies
            ),
            tuple(with_intervals(row, intervals) for row in self.pairs),
        )


def _key(mission: str | None, label: str, policy: str) -> tuple[Hashable, ...]:
    return ("policy", mission, label, policy)


def summarize_mix(label: str, records: Sequence[EpisodeRecord], missions: Sequence[str], bootstrap: Bootstrap) -> Mix:
    """Return what the episodes of a label, all with a result, say of the policies that agents followed in them.

    That is nothing where all agents followed the one policy that the label names.
    """
    episodes = {mission: _by_policy([r for r in records if r.mission == mission], label) for mission in missions}
    policies = sorted({policy for found in episodes.values() for one in found.values() for policy in one})
    if set(policies) <= {label}:
        return Mix()
    rows = []
    for where in (*missions, None):
        here = episodes if where is None else {where: episodes[where]}
        ratings = _ratings([one for found in here.values() for one in found.values()])
        rows += [
            _row(where, label, policy, here, ratings.get(policy), bootstrap)
            for policy in policies
            if any(policy in one for found in here.values() for one in found.values())
        ]
    played = {
        policy: {
            mission: {episode: one[policy] for episode, one in found.items() if policy in one}
            for mission, found in episodes.items()
        }
        for policy in policies
    }
    pairs = compare_all(missions, policies, played, {}, bootstrap, mix=label)
    return Mix(tuple(rows), tuple(row for row in pairs if row.episodes))


def _by_policy(records: Iterable[EpisodeRecord], label: str) -> dict[int, Episode]:
    found: dict[int, Episode] = {}
    for record in records:
        followers: dict[str, list[float]] = {}
        for agent, reward in record.rewards.items():
            followers.setdefault(record.policies.get(agent, label), []).append(float(reward))
        found[record.episode] = {policy: math.fsum(each) / len(each) for policy, each in followers.items()}
    return found


def _row(
    mission: str | None,
    label: str,
    policy: str,
    episodes: Mapping[str, Mapping[int, Episode]],
    rating: Rating | None,
    bootstrap: Bootstrap,
) -> PolicySummary:
    strata = {name: [one[policy] for one in found.values() if policy in one] for name, found in episodes.items()}
    values = [value for stratum in strata.values() for value in stratum]
    pooled = len(strata) > 1  # the missions' rewards need not be comparable
    if not pooled:
        bootstrap.add_iqm(_key(mission, label, policy), strata)
    return PolicySummary(
        mission=mission,
        label=label,
        policy=policy,
        episodes=len(values),
        reward=None if pooled else mean(values),
        iqm=None if pooled else interquartile_mean(values),
        interval=None,
        rating=None if rating is None else rating.points,
        rating_interval=None if rating is None else rating.interval,
    )


def _ratings(episodes: Iterable[Episode]) -> dict[str, Rating]:
    """Rate the policies that met others. In an episode each plays one game in all, in equal parts against all others."""
    parts: dict[tuple[str, str], list[float]] = {}
    for rewards in episodes:
        for one, reward in rewards.items():
            for other, against in rewards.items():
                if one != other:
                    won = 1.0 if reward > against else 0.5 if reward == against else 0.0
                    parts.setdefault((one, other), []).append(won / (len(rewards) - 1))
    policies = sorted({policy for policy, _ in parts})
    return rate(policies, {pair: math.fsum(won) for pair, won in parts.items()}) if policies else {}
