"""What the episodes of an evaluation say: means, interquartile means, intervals and paired comparisons.

Everything is a function of the records as a set and of one seed: neither the order in which episodes came in nor the
number of threads changes a digit. Only what stands under `timing` depends on the clock.

An interquartile mean (IQM) is the mean of the middle half: a quarter of the episodes, rounded down, is left away at
each end. Intervals are 95% percentile intervals of a stratified bootstrap: episodes are drawn anew within each mission.
Where there is nothing to draw from (no two episodes on one mission) there is no interval. Where all episodes agree the
interval is a single point, which says more about the number of episodes than about the policy.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stretto.errors import UsageError
from stretto.evaluation.records import EpisodeRecord
from stretto.seeding import SeedTree

Failed = Literal["exclude", "worst"]
Interval = tuple[float, float]
EpisodeKey = tuple[str, str, int]
Played = Mapping[str, Mapping[tuple[str, int], float]]
Places = NDArray[np.int64]

CONFIDENCE = 0.95
RESAMPLES = 2_000
LARGEST = 1e150  # numbers beyond are no results: their sums and differences need not be finite
_BLOCK = 1 << 16  # numbers drawn at a time: all that is computed from them stays in the cache


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """How one label did on one mission, or on all of them (`mission` is None), which pools their episodes.

    `episodes` are those that count, `failures` those that failed, `left_out` those that do not count, because they
    failed here or for another label. Rewards are per agent and episode. Steps, `overdue` (deadlines struck, in total)
    and `statistics` (of the game: a mean, and over how many episodes that report it) are of counted episodes that did
    not fail; `timing` is of all that did not fail and were timed. None stands where there is no episode to tell.
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
    """What an evaluation found: every label on every mission, every label on all of them, and every pair of labels."""

    missions: tuple[str, ...]
    labels: tuple[str, ...]
    failed: Failed
    seed: int
    resamples: int
    by_mission: tuple[LabelSummary, ...]
    overall: tuple[LabelSummary, ...]
    comparisons: tuple[Comparison, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Summary:
        """Return the summary that `as_json` was called on, also after a trip through JSON."""
        rows: dict[str, type[LabelSummary | Comparison]] = {
            "by_mission": LabelSummary,
            "overall": LabelSummary,
            "comparisons": Comparison,
        }
        tables = {name: tuple(row(**_with_tuples(found)) for found in values[name]) for name, row in rows.items()}
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
    for key, count in Counter(record.key for record in ordered).items():
        if count > 1:
            raise UsageError(f"each episode must have one record, got {count} of {key}; leave out all but one")
    missions = _in_order("missions", missions, {record.mission for record in ordered})
    labels = _in_order("labels", labels, {record.label for record in ordered})
    rewards = counted_rewards(ordered, failed)
    stream = SeedTree(seed).child("bootstrap")
    parts: dict[tuple[str | None, str], list[EpisodeRecord]] = {}
    for record in ordered:
        parts.setdefault((record.mission, record.label), []).append(record)
        parts.setdefault((None, record.label), []).append(record)
    played: dict[str, dict[tuple[str, int], float]] = {}
    for (mission, label, episode), reward in sorted(rewards.items()):
        played.setdefault(label, {})[mission, episode] = reward
    rows = {part: _summarize_label(part, found, rewards, stream, resamples) for part, found in parts.items()}
    pairs = [(label, baseline) for place, label in enumerate(labels) for baseline in labels[place + 1 :]]
    return Summary(
        missions=missions,
        labels=labels,
        failed=failed,
        seed=seed,
        resamples=resamples,
        by_mission=tuple(rows[part] for m in missions for label in labels if (part := (m, label)) in rows),
        overall=tuple(rows[None, label] for label in labels if (None, label) in rows),
        comparisons=tuple(
            _compare(where, pair, played, stream, resamples) for where in (None, *missions) for pair in pairs
        ),
    )


def counted_rewards(records: Iterable[EpisodeRecord], failed: Failed = "exclude") -> dict[EpisodeKey, float]:
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


def iqm_interval(strata: Sequence[Sequence[float]], stream: SeedTree, resamples: int = RESAMPLES) -> Interval | None:
    """Return the interval of the IQM of all values together, which are drawn anew within each stratum."""
    if not _can_resample(strata):
        return None
    values = np.concatenate([np.asarray(stratum, np.float64) for stratum in strata])
    total, cut = len(values), len(values) // 4
    # Sorted once: how often each rank was drawn tells what the middle half of a resample is, without sorting it.
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    ranks = np.empty(total, np.int64)
    ranks[order] = np.arange(total)
    excess = []
    for counts in _draw_counts(_split(ranks, strata), stream.generator(), resamples):
        # A kept value is the lowest of all plus the gaps below it: count the kept ones above each gap.
        upto = np.clip(np.cumsum(counts, axis=1), cut, total - cut)[:, :-1]
        # Not `@`: what BLAS adds up first, and so the last digit, depends on its number of threads.
        excess.append(np.einsum("ij,j->i", total - cut - upto, np.diff(ordered)))
    return _percentiles(ordered[0] + np.concatenate(excess) / (total - 2 * cut))


def mean_intervals(
    strata: Sequence[Sequence[Sequence[float]]], stream: SeedTree, resamples: int = RESAMPLES
) -> list[Interval] | None:
    """Return the interval of the mean of each column, of rows which are drawn anew within each stratum."""
    if not _can_resample(strata):
        return None
    columns = np.array([row for stratum in strata for row in stratum], np.float64).T.copy()
    draws = _draw_counts(_split(np.arange(columns.shape[1]), strata), stream.generator(), resamples)
    # From the lowest value on, so that values which are all equal have exactly themselves for an interval.
    lowest = columns.min(axis=1, keepdims=True)
    excess = np.concatenate([np.einsum("ij,kj->ki", counts, columns - lowest) for counts in draws], axis=1)
    return [_percentiles(means) for means in lowest + excess / columns.shape[1]]


def _summarize_label(
    part: tuple[str | None, str],
    records: Sequence[EpisodeRecord],
    rewards: Mapping[EpisodeKey, float],
    stream: SeedTree,
    resamples: int,
) -> LabelSummary:
    mission, label = part
    counted = [record for record in records if record.key in rewards]
    played = [record for record in counted if has_result(record)]
    strata: dict[str, list[float]] = {}
    for record in counted:
        strata.setdefault(record.mission, []).append(rewards[record.key])
    values = [value for stratum in strata.values() for value in stratum]
    stream = stream.child("reward", label, *(() if mission is None else (mission,)))
    return LabelSummary(
        mission=mission,
        label=label,
        episodes=len(counted),
        failures=sum(not has_result(record) for record in records),
        left_out=len(records) - len(counted),
        reward=_mean(values),
        iqm=interquartile_mean(values),
        interval=iqm_interval(list(strata.values()), stream, resamples),
        steps=_mean([record.steps for record in played]),
        overdue=int(sum(sum(record.overdue.values()) for record in played)),
        statistics=_game_statistics(played),
        timing=_throughput(records),
    )


def _compare(
    mission: str | None, pair: tuple[str, str], played: Played, stream: SeedTree, resamples: int
) -> Comparison:
    first, second = (played.get(label, {}) for label in pair)
    strata: dict[str, list[tuple[float, float]]] = {}
    for (where, episode), reward in first.items():
        if mission in (None, where) and (where, episode) in second:
            difference = reward - second[where, episode]
            strata.setdefault(where, []).append(((1 + (difference > 0) - (difference < 0)) / 2, difference))
    rows = [row for stratum in strata.values() for row in stratum]
    stream = stream.child("pair", *pair, *(() if mission is None else (mission,)))
    intervals = mean_intervals(list(strata.values()), stream, resamples) or (None, None)
    return Comparison(
        mission=mission,
        label=pair[0],
        baseline=pair[1],
        episodes=len(rows),
        improvement=_mean([win for win, _ in rows]),
        improvement_interval=intervals[0],
        difference=_mean([difference for _, difference in rows]),
        difference_interval=intervals[1],
    )


def _game_statistics(records: Sequence[EpisodeRecord]) -> dict[str, dict[str, float]]:
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.statistics.items():
            if abs(float(value)) <= LARGEST:  # and not NaN, by which games mean what did not happen
                values.setdefault(name, []).append(float(value))
    return {name: {"mean": math.fsum(each) / len(each), "episodes": len(each)} for name, each in sorted(values.items())}


def _throughput(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    timed = [record for record in records if has_result(record) and seconds_taken(record)]
    if not timed:
        return {}
    seconds = math.fsum(map(seconds_taken, timed))
    steps = math.fsum(record.steps for record in timed)
    return {"episodes": len(timed), "seconds": seconds, "steps_per_second": steps / seconds}


def _mean(values: Sequence[float]) -> float | None:
    # fsum rounds once, so that the order of the values does not matter.
    return math.fsum(values) / len(values) if values else None


def _can_resample(strata: Sequence[Sequence[object]]) -> bool:
    return any(len(stratum) > 1 for stratum in strata)


def _split(places: Places, strata: Sequence[Sequence[object]]) -> list[Places]:
    return np.split(places, np.cumsum([len(stratum) for stratum in strata])[:-1])


def _draw_counts(strata: Sequence[Places], rng: np.random.Generator, resamples: int) -> Iterator[Places]:
    """Yield, some resamples at a time, how often each place is drawn; `strata` are the places that belong together."""
    total = sum(map(len, strata))
    block = max(1, _BLOCK // total)
    for first in range(0, resamples, block):
        rows = min(block, resamples - first)
        starts = np.arange(0, rows * total, total)[:, None]
        drawn = [places[rng.integers(len(places), size=(rows, len(places)))] + starts for places in strata]
        yield np.bincount(np.concatenate(drawn, axis=1).ravel(), minlength=rows * total).reshape(rows, total)


def _percentiles(resampled: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _in_order(what: str, given: Sequence[str] | None, found: set[str]) -> tuple[str, ...]:
    if given is None:
        return tuple(sorted(found))
    if missing := found.difference(given):
        raise UsageError(f"{what} must name all that the records have, got {list(given)}; add {sorted(missing)}")
    return tuple(dict.fromkeys(given))


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
