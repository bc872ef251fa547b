"""What the episodes of an evaluation say: means, interquartile means, intervals and paired comparisons.

Everything is a function of the records as a set and of one seed: neither the order in which episodes came in nor the
number of threads changes a digit. Only what stands under `timing` depends on the clock.

An interquartile mean (IQM) is the mean of the middle half: a quarter of the episodes, rounded down, is left away at
each end. Intervals are those of `bootstrap`, with missions for strata. Where there is nothing to draw from (no two
episodes on one mission) there is none. Where all episodes agree the interval is a single point, which says more about the
number of episodes than about the policy.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from stretto.errors import UsageError
from stretto.evaluation.bootstrap import RESAMPLES, Bootstrap, Interval
from stretto.evaluation.records import EpisodeRecord, RecordKey
from stretto.seeding import SeedTree

Failed = Literal["exclude", "worst"]
RewardsByLabel = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By label, mission and episode."""

LARGEST = 1e150  # numbers beyond are no results: their sums and differences need not be finite


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """How one label did on one mission, or on all of them (`mission` is None), which pools their episodes.

    `episodes` are those that count, `failures` those that failed, `left_out` those that do not count, because they
    failed here or for another label. Rewards are per agent and episode. Steps and `statistics` (of the game: a mean, and
    over how many episodes that report it) are of counted episodes that did not fail; `overdue` are the deadlines struck
    in all episodes; `timing` is of all that did not fail and were timed. None stands where there is no episode to tell.
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


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """How one policy of a mix did on one mission, or on all of them (`mission` is None); `label` is that of the mix.

    `episodes` are those that count, did not fail, and in which any agent followed the policy. Rewards are means over
    these agents in an episode.
    """

    mission: str | None
    label: str
    policy: str
    episodes: int
    reward: float | None
    iqm: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How `label` did against `baseline` in the episodes that both played, on one mission or on all (None).

    `improvement` is the share of episodes in which `label` had the higher reward, a tie being one half; `difference`
    is how much higher it was on average.
    """

    mission: str | None
    label: str
    baseline: str
    episodes: int
    improvement: float | None
    improvement_interval: Interval | None
    difference: float | None
    difference_interval: Interval | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What an evaluation found: every label on every mission, every label on all of them, and every pair of labels.

    `by_policy` has, for labels that are mixes, every policy on every mission, and on all of them.
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
        }
        tables = {
            name: tuple(row(**_with_tuples(found)) for found in values.get(name, ())) for name, row in rows.items()
        }
        return cls(**{**_with_tuples(values), **tables})


def summarize(
    records: Iterable[EpisodeRecord],
    *,
    failed: Failed = "exclude",
    seed: int = 0,
    missions: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
) -> Summary:
    """Return what `records` say; `failed` is explained at `counted_rewards`.

    `missions` and `labels` give the order of the tables and the direction of comparisons: an earlier label is compared
    with the later ones. Both default to the order of their names, so that the order of `records` does not matter.
    The IQM over all missions pools their episodes and does not rescale rewards: a mission with larger rewards, or with
    more episodes, weighs more.

    Raises:
        UsageError: if two records are of the same episode, or one is of a mission or label that the order leaves out.
    """
    ordered = sorted(records, key=lambda record: record.key)
    _check_single(ordered)
    missions = _in_order("missions", missions, {record.mission for record in ordered})
    labels = _in_order("labels", labels, {record.label for record in ordered})
    rewards = counted_rewards(ordered, failed)
    bootstrap = Bootstrap(SeedTree(seed).child("bootstrap"), resamples)
    parts: dict[tuple[str | None, str], list[EpisodeRecord]] = {}
    for record in ordered:
        parts.setdefault((record.mission, record.label), []).append(record)
        parts.setdefault((None, record.label), []).append(record)
    rows = {part: _summarize_label(part, found, rewards, bootstrap) for part, found in parts.items()}
    counting = {part: [r for r in found if r.key in rewards and has_result(r)] for part, found in parts.items()}
    mixed = [
        row
        for mission in (*missions, None)
        for label in labels
        for row in _summarize_policies(mission, label, counting.get((mission, label), ()), bootstrap)
    ]
    compared = _compare_all(missions, labels, rewards, bootstrap)
    intervals = bootstrap.intervals()
    rows = {part: replace(row, interval=intervals.get(part)) for part, row in rows.items()}
    return Summary(
        missions=missions,
        labels=labels,
        failed=failed,
        seed=seed,
        resamples=resamples,
        by_mission=tuple(rows[part] for m in missions for label in labels if (part := (m, label)) in rows),
        overall=tuple(rows[None, label] for label in labels if (None, label) in rows),
        comparisons=tuple(_with_intervals(row, intervals) for row in compared),
        by_policy=tuple(replace(row, interval=intervals.get((row.mission, row.label, row.policy))) for row in mixed),
    )


def _check_single(records: Iterable[EpisodeRecord]) -> None:
    for key, count in Counter(record.key for record in records).items():
        if count > 1:
            raise UsageError(f"each episode must have one record, got {count} of {key}; leave out all but one")


def counted_rewards(records: Iterable[EpisodeRecord], failed: Failed = "exclude") -> dict[RecordKey, float]:
    """Return the reward with which each episode counts, by the episode's key; what does not count is not there.

    With "exclude", an episode of a mission that failed for one label is left out for all labels: otherwise a policy
    would gain by failing where it is hard. Only a label without any result at all takes nothing away from the others.
    With "worst", a failed episode counts as the worst reward that anybody got on that mission; on a mission where
    nobody got one it is left out. A reward that is no finite number, or beyond `LARGEST`, is a failure.

    Raises:
        UsageError: if `failed` is neither.
    """
    if failed not in get_args(Failed):
        raise UsageError(f"failed must be one of {', '.join(get_args(Failed))}, got {failed!r}")
    records = list(records)
    results = {record.key: float(record.reward) for record in records if has_result(record)}
    if failed == "exclude":
        compared = {label for _, label, _ in results}
        lost = {(r.mission, r.episode) for r in records if r.key not in results and r.label in compared}
        return {key: reward for key, reward in results.items() if (key[0], key[2]) not in lost}
    worst: dict[str, float] = {}
    for (mission, _, _), reward in results.items():
        worst[mission] = min(reward, worst.get(mission, reward))
    failures = {r.key: worst[r.mission] for r in records if r.key not in results and r.mission in worst}
    return results | failures


def has_result(record: EpisodeRecord) -> bool:
    """Whether an episode ended well, with a reward that can be compared."""
    return record.failure is None and abs(float(record.reward)) <= LARGEST


def seconds_taken(record: EpisodeRecord) -> float:
    """Return how long an episode took by the clock, 0 if nobody knows."""
    seconds = float(record.timing.get("seconds") or 0.0)
    return seconds if 0.0 < seconds <= LARGEST else 0.0


def interquartile_mean(values: Iterable[float]) -> float | None:
    """Return the mean of the middle half of `values`, or None if there are none."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return _mean(ordered[cut : len(ordered) - cut])


def _summarize_label(
    part: tuple[str | None, str],
    records: Sequence[EpisodeRecord],
    rewards: Mapping[RecordKey, float],
    bootstrap: Bootstrap,
) -> LabelSummary:
    """Return all but the interval, which `bootstrap` is asked for."""
    mission, label = part
    counted = [record for record in records if record.key in rewards]
    well = [record for record in records if has_result(record)]
    played = [record for record in well if record.key in rewards]
    strata: dict[str, list[float]] = {}
    for record in counted:
        strata.setdefault(record.mission, []).append(rewards[record.key])
    values = [value for stratum in strata.values() for value in stratum]
    bootstrap.add_iqm(part, strata)
    return LabelSummary(
        mission=mission,
        label=label,
        episodes=len(counted),
        failures=len(records) - len(well),
        left_out=len(records) - len(counted),
        reward=_mean(values),
        iqm=interquartile_mean(values),
        interval=None,
        steps=_mean([record.steps for record in played]),
        overdue=int(sum(sum(record.overdue.values()) for record in records)),
        statistics=_game_statistics(played),
        timing=_throughput(well),
    )


def _summarize_policies(
    mission: str | None, label: str, records: Sequence[EpisodeRecord], bootstrap: Bootstrap
) -> Iterator[PolicySummary]:
    """Yield a row for each policy of a mix, by name, without the interval, which `bootstrap` is asked for."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        followers: dict[str, list[float]] = {}
        for agent, reward in record.rewards.items():
            followers.setdefault(record.policies.get(agent, label), []).append(float(reward))
        for policy, rewards in followers.items():
            found.setdefault(policy, {}).setdefault(record.mission, []).append(math.fsum(rewards) / len(rewards))
    if found.keys() <= {label}:
        return  # one policy that all agents followed: its row is that of the label
    for policy, strata in sorted(found.items()):
        values = [value for stratum in strata.values() for value in stratum]
        bootstrap.add_iqm((mission, label, policy), strata)
        yield PolicySummary(mission, label, policy, len(values), _mean(values), interquartile_mean(values), None)


def _compare_all(
    missions: Sequence[str], labels: Sequence[str], rewards: Mapping[RecordKey, float], bootstrap: Bootstrap
) -> list[Comparison]:
    """Return how each label did against each later one: on all missions first, then mission by mission."""
    played: dict[str, dict[str, dict[int, float]]] = {}
    for (mission, label, episode), reward in sorted(rewards.items()):
        played.setdefault(label, {}).setdefault(mission, {})[episode] = reward
    pairs = [(label, baseline) for place, label in enumerate(labels) for baseline in labels[place + 1 :]]
    compared = [row for pair in pairs for row in _compare(missions, pair, played, bootstrap)]
    places = {mission: place for place, mission in enumerate((None, *missions))}
    return sorted(compared, key=lambda row: places[row.mission])


def _compare(
    missions: Sequence[str], pair: tuple[str, str], played: RewardsByLabel, bootstrap: Bootstrap
) -> Iterator[Comparison]:
    """Yield how a pair did on all missions and on each, without the intervals, which `bootstrap` is asked for."""
    first, second = (played.get(label, {}) for label in pair)
    differences: dict[str, list[float]] = {}
    for mission in missions:
        there, here = first.get(mission, {}), second.get(mission, {})
        differences[mission] = [reward - here[episode] for episode, reward in there.items() if episode in here]
    wins = {mission: [_win(one) for one in found] for mission, found in differences.items()}
    for where in (None, *missions):
        chosen = missions if where is None else [where]
        gained, won = ({m: found[m] for m in chosen if found[m]} for found in (differences, wins))
        bootstrap.add_mean(("improvement", where, *pair), won)
        bootstrap.add_mean(("difference", where, *pair), gained)
        yield Comparison(
            mission=where,
            label=pair[0],
            baseline=pair[1],
            episodes=sum(map(len, gained.values())),
            improvement=_mean([one for found in won.values() for one in found]),
            improvement_interval=None,
            difference=_mean([one for found in gained.values() for one in found]),
            difference_interval=None,
        )


def _win(difference: float) -> float:
    return 1.0 if difference > 0 else 0.0 if difference < 0 else 0.5


def _with_intervals(row: Comparison, intervals: Mapping[Hashable, Interval]) -> Comparison:
    key = row.mission, row.label, row.baseline
    return replace(
        row,
        improvement_interval=intervals.get(("improvement", *key)),
        difference_interval=intervals.get(("difference", *key)),
    )


def _game_statistics(records: Sequence[EpisodeRecord]) -> dict[str, dict[str, float]]:
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.statistics.items():
            if value is not None and abs(float(value)) <= LARGEST:  # and not NaN: such games tell nothing
                values.setdefault(name, []).append(float(value))
    return {name: {"mean": math.fsum(each) / len(each), "episodes": len(each)} for name, each in sorted(values.items())}


def _throughput(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    timed = [record for record in records if seconds_taken(record)]
    if not timed:
        return {}
    seconds = math.fsum(map(seconds_taken, timed))
    steps = math.fsum(record.steps for record in timed)
    return {"episodes": len(timed), "seconds": seconds, "steps_per_second": steps / seconds}


def _mean(values: Sequence[float]) -> float | None:
    # fsum rounds once, so that the order of the values does not matter.
    return math.fsum(values) / len(values) if values else None


def _in_order(what: str, given: Sequence[str] | None, found: set[str]) -> tuple[str, ...]:
    if given is None:
        return tuple(sorted(found))
    if missing := found.difference(given):
        raise UsageError(f"{what} must name all that the records have, got {list(given)}; add {sorted(missing)}")
    return tuple(dict.fromkeys(given))


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
