"""What the episodes of an evaluation say: means, interquartile means, intervals and paired comparisons.

Everything is a function of the records as a set and of one seed: neither the order in which episodes came in nor the
number of threads changes a digit. Only what stands under `timing` depends on the clock.

Intervals of means are those of `bootstrap`, with missions for strata. Where there is nothing to draw from (no two episodes on
one mission) there is none. Where all episodes agree the interval is a single point, which says more about the number of
episodes than about the policy. Intervals of shares are those of `score_interval`, and are never a point.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from stretto.errors import UsageError
from stretto.evaluation.records import LARGEST, EpisodeRecord, RecordKey
from stretto.evaluation.statistics.averages import interquartile_mean, mean
from stretto.evaluation.statistics.bootstrap import RESAMPLES, Bootstrap
from stretto.evaluation.statistics.comparisons import compare_all, with_intervals
from stretto.evaluation.statistics.mixes import summarize_mix
from stretto.evaluation.statistics.scales import References, normalized, scales_of
from stretto.evaluation.statistics.summary import Failed, LabelSummary, Summary
from stretto.seeding.streams import SeedTree


def summarize(
    records: Iterable[EpisodeRecord],
    *,
    failed: Failed = "exclude",
    seed: int = 0,
    missions: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    normalize: References | None = None,
    resamples: int = RESAMPLES,
) -> Summary:
    """Return what `records` say; `failed` is explained at `counted_rewards`, `normalize` in `scales`.

    `missions` and `labels` give the order of the tables and the direction of comparisons: an earlier label is compared
    with the later ones. Both default to the order of their names, so that the order of `records` does not matter.

    Raises:
        UsageError: if two records are of the same episode, or one is of a mission or label that the order leaves out.
    """
    ordered = sorted(records, key=lambda record: record.key)
    _check_single(ordered)
    missions = _in_order("missions", missions, {record.mission for record in ordered})
    labels = _in_order("labels", labels, {record.label for record in ordered})
    rewards = counted_rewards(ordered, failed)
    scales = scales_of(rewards, normalize) if normalize is not None else {}
    scores = normalized(rewards, scales)
    bootstrap = Bootstrap(SeedTree(seed).child("bootstrap"), resamples)
    parts: dict[tuple[str | None, str], list[EpisodeRecord]] = {}
    for record in ordered:
        parts.setdefault((record.mission, record.label), []).append(record)
        parts.setdefault((None, record.label), []).append(record)
    rows = {part: _summarize_label(part, found, rewards, scores, bootstrap) for part, found in parts.items()}
    well = [record for record in ordered if record.key in rewards and record.has_result]
    mixes = [summarize_mix(label, [r for r in well if r.label == label], missions, bootstrap) for label in labels]
    compared = compare_all(missions, labels, _by_label(rewards), _by_label(scores), bootstrap)
    intervals = bootstrap.intervals()
    rows = {
        part: replace(row, interval=intervals.get(("reward", *part)), score_interval=intervals.get(("score", *part)))
        for part, row in rows.items()
    }
    mixes = [mix.with_intervals(intervals) for mix in mixes]
    return Summary(
        missions=missions,
        labels=labels,
        failed=failed,
        seed=seed,
        resamples=resamples,
        by_mission=tuple(rows[part] for m in missions for label in labels if (part := (m, label)) in rows),
        overall=tuple(rows[None, label] for label in labels if (None, label) in rows),
        comparisons=tuple(with_intervals(row, intervals) for row in compared),
        by_policy=tuple(row for mix in mixes for row in mix.policies),
        within_mixes=tuple(row for mix in mixes for row in mix.pairs),
        normalize=normalize,
        scales=scales,
    )


def _check_single(records: Iterable[EpisodeRecord]) -> None:
    for key, count in Counter(record.key for record in records).items():
        if count > 1:
            raise UsageError(f"each episode must have one record, got {count} of {key}; leave out all but one")


def counted_rewards(records: Iterable[EpisodeRecord], failed: Failed = "exclude") -> dict[RecordKey, float]:
    """Return the reward with which each episode counts, by the episode's key; what does not count is not there.

    With "exclude", an episode of a mission that failed for one label is left out for all labels: otherwise a policy
    would gain by failing where it is hard. A label without any result on a mission takes nothing away from others there.
    With "worst", a failed episode counts as the worst reward that anybody got on that mission; on a mission where
    nobody got one it is left out. A reward that is no finite number, or beyond `LARGEST`, is a failure.

    Raises:
        UsageError: if `failed` is neither.
    """
    if failed not in get_args(Failed):
        raise UsageError(f"failed must be one of {', '.join(get_args(Failed))}, got {failed!r}")
    records = list(records)
    results = {record.key: float(record.reward) for record in records if record.has_result}
    if failed == "exclude":
        compared = {(mission, label) for mission, label, _ in results}
        lost = {(r.mission, r.episode) for r in records if r.key not in results and (r.mission, r.label) in compared}
        return {key: reward for key, reward in results.items() if (key[0], key[2]) not in lost}
    worst: dict[str, float] = {}
    for (mission, _, _), reward in results.items():
        worst[mission] = min(reward, worst.get(mission, reward))
    failures = {r.key: worst[r.mission] for r in records if r.key not in results and r.mission in worst}
    return results | failures


def _summarize_label(
    part: tuple[str | None, str],
    records: Sequence[EpisodeRecord],
    rewards: Mapping[RecordKey, float],
    scores: Mapping[RecordKey, float],
    bootstrap: Bootstrap,
) -> LabelSummary:
    """Return all but the intervals, which `bootstrap` is asked for."""
    mission, label = part
    counted = [record for record in records if record.key in rewards]
    well = [record for record in records if record.has_result]
    played = [record for record in well if record.key in rewards]
    comparable = len({record.mission for record in records}) == 1
    found = {"reward": _strata(counted if comparable else [], rewards), "score": _strata(counted, scores)}
    values = {name: [value for stratum in strata.values() for value in stratum] for name, strata in found.items()}
    for name, strata in found.items():
        bootstrap.add_iqm((name, *part), strata)
    return LabelSummary(
        mission=mission,
        label=label,
        episodes=len(counted),
        failures=len(records) - len(well),
        left_out=len(records) - len(counted),
        reward=mean(values["reward"]),
        iqm=interquartile_mean(values["reward"]),
        interval=None,
        steps=mean([record.steps for record in played]),
        overdue=int(sum(sum(record.overdue.values()) for record in records)),
        statistics=_game_statistics(played) if comparable else {},
        agent_statistics=_agent_statistics(played) if comparable else {},
        timing=_throughput(well),
        score=interquartile_mean(values["score"]),
    )


def _strata(records: Iterable[EpisodeRecord], values: Mapping[RecordKey, float]) -> dict[str, list[float]]:
    strata: dict[str, list[float]] = {}
    for record in records:
        if record.key in values:
            strata.setdefault(record.mission, []).append(values[record.key])
    return strata


def _by_label(values: Mapping[RecordKey, float]) -> dict[str, dict[str, dict[int, float]]]:
    found: dict[str, dict[str, dict[int, float]]] = {}
    for (mission, label, episode), value in values.items():
        found.setdefault(label, {}).setdefault(mission, {})[episode] = value
    return found


def _game_statistics(records: Sequence[EpisodeRecord]) -> dict[str, dict[str, float]]:
    return _means(record.statistics for record in records)


def _agent_statistics(records: Sequence[EpisodeRecord]) -> dict[str, dict[str, dict[str, float]]]:
    names = sorted({name for record in records for name in record.agent_statistics})
    return {name: _means(record.agent_statistics.get(name, {}) for record in records) for name in names}


def _means(told: Iterable[Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    """Return the mean of each name, and in how many episodes it was told."""
    values: dict[str, list[float]] = {}
    for one in told:
        for name, value in one.items():
            if value is not None and abs(float(value)) <= LARGEST:  # and not NaN: such games tell nothing
                values.setdefault(name, []).append(float(value))
    return {name: {"mean": math.fsum(each) / len(each), "episodes": len(each)} for name, each in sorted(values.items())}


def _throughput(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    timed = [record for record in records if record.seconds]
    if not timed:
        return {}
    seconds = math.fsum(record.seconds for record in timed)
    steps = math.fsum(record.steps for record in timed)
    asked = [record.timing for record in timed if record.timing.get("turns")]
    counts = {name: sum(one[name] for one in asked) for name in ("turns", "rounds", "conflicts")} if asked else {}
    return {"episodes": len(timed), "seconds": seconds, "steps_per_second": steps / seconds, **counts}


def _in_order(what: str, given: Sequence[str] | None, found: set[str]) -> tuple[str, ...]:
    if given is None:
        return tuple(sorted(found))
    if missing := found.difference(given):
        raise UsageError(f"{what} must name all that the records have, got {list(given)}; add {sorted(missing)}")
    return tuple(dict.fromkeys(given))
