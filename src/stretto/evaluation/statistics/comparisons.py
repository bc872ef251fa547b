"""Pairs of policies, compared on the episodes that both played."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from stretto.evaluation.statistics.averages import Interval, mean
from stretto.evaluation.statistics.bootstrap import Bootstrap
from stretto.evaluation.statistics.score_interval import score_interval, share_of_wins
from stretto.evaluation.statistics.summary import Comparison

RewardsByName = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By policy (or label), mission and episode."""

Differences = Mapping[str, Sequence[float]]
"""By mission: by how much the first of two did better, in each episode."""


def compare_all(
    missions: Sequence[str],
    names: Sequence[str],
    played: RewardsByName,
    scores: RewardsByName,
    bootstrap: Bootstrap,
    *,
    mix: str | None = None,
) -> list[Comparison]:
    """Return how each name did against each later one: on all missions first, then mission by mission.

    `scores` are what differences over several missions are taken of, where there are any. `mix` is the label of the mix
    that names are the policies of. The intervals of differences are left out; `bootstrap` is asked for them, see
    `with_intervals`.
    """
    pairs = [(name, baseline) for place, name in enumerate(names) for baseline in names[place + 1 :]]
    rows = []
    for pair in pairs:
        for row, differences in _compare(missions, pair, played, scores):
            rows.append(replace(row, mix=mix))
            bootstrap.add_mean(_key(rows[-1]), differences)
    places = {mission: place for place, mission in enumerate((None, *missions))}
    return sorted(rows, key=lambda row: places[row.mission])


def with_intervals(row: Comparison, intervals: Mapping[Hashable, Interval]) -> Comparison:
    """Return a comparison with the interval that `bootstrap` found."""
    return replace(row, difference_interval=intervals.get(_key(row)))


def _key(row: Comparison) -> Hashable:
    return "difference", row.mix, row.mission, row.label, row.baseline


def _compare(
    missions: Sequence[str], pair: tuple[str, str], played: RewardsByName, scores: RewardsByName
) -> Iterator[tuple[Comparison, Differences]]:
    """Yield how a pair did on all missions and on each, with what the mean difference is the mean of."""
    rewards = _differences(missions, pair, played)
    pooled = _differences(missions, pair, scores) if len(missions) > 1 else rewards
    for where in (None, *missions):
        here = rewards if where is None else {name: found for name, found in rewards.items() if name == where}
        outcomes = [difference for found in here.values() for difference in found]
        wins, losses = sum(one > 0 for one in outcomes), sum(one < 0 for one in outcomes)
        counts = wins, len(outcomes) - wins - losses, losses
        gained = pooled if where is None else here
        row = Comparison(
            mission=where,
            label=pair[0],
            baseline=pair[1],
            episodes=len(outcomes),
            improvement=share_of_wins(*counts) if outcomes else None,
            improvement_interval=score_interval(*counts) if outcomes else None,
            difference=mean([difference for found in gained.values() for difference in found]),
            difference_interval=None,
        )
        yield row, gained


def _differences(missions: Sequence[str], pair: tuple[str, str], played: RewardsByName) -> Differences:
    """Return, of missions with episodes that both played, the differences in the order of the episodes."""
    first, second = (played.get(name, {}) for name in pair)
    found = {}
    for mission in missions:
        there, here = first.get(mission, {}), second.get(mission, {})
        if both := sorted(there.keys() & here.keys()):
            found[mission] = [there[episode] - here[episode] for episode in both]
    return found
