"""The answer of an evaluation, in sentences: who is best, by how much, how sure that is, and on how many episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.evaluation.report.wording import counted, interval_text, listed, rating_text, short_number, shorten
from stretto.evaluation.statistics.summary import Comparison, LabelSummary, PolicySummary, Summary

LEAST_EPISODES = 6
"""Who wins five times of five may well be the worse one: that is seen once in sixteen times by chance."""

_MOST_COMPARED = 4
_LONGEST_NAME = 30


@dataclass(frozen=True, slots=True)
class Answer:
    """A headline, and the sentences that say why."""

    headline: str
    reasons: tuple[str, ...] = ()


def answer_of(summary: Summary) -> Answer:
    """Return the answer that a summary gives."""
    ranked = ranking(summary)
    if len(ranked) > 1:
        return _compared(summary, ranked)
    rated = [row for row in summary.by_policy if row.mission is None and row.rating is not None]
    if len(rated) > 1:
        return _rated(summary, sorted(rated, key=lambda row: -(row.rating or 0.0)))
    if ranked:
        return _alone(summary, ranked[0])
    return Answer("No episode has a result")


def ranking(summary: Summary) -> list[str]:
    """Return the labels that have a result, the best first.

    On one mission they are ranked by interquartile mean, on several by normalized score, and without one by the share of
    episodes in which they are better than others.
    """
    rows = [row for row in summary.overall if row.episodes]
    values = [[row.iqm for row in rows], [row.score for row in rows], [_share_won(summary, row.label) for row in rows]]
    ranks = next((found for found in values if all(value is not None for value in found)), [0.0] * len(rows))
    by_rank = sorted(zip(ranks, rows, strict=True), key=lambda pair: -(pair[0] or 0.0))
    return [row.label for _, row in by_rank]


def against(summary: Summary, label: str) -> dict[str, Comparison]:
    """Return how a label did against each other one on all missions, by the other's label."""
    found = {}
    for row in summary.comparisons:
        if row.mission is None and label in (row.label, row.baseline):
            one = row if row.label == label else row.swapped()
            found[one.baseline] = one
    return found


def _share_won(summary: Summary, label: str) -> float | None:
    shares = [row.improvement for row in against(summary, label).values() if row.improvement is not None]
    return math.fsum(shares) / len(shares) if shares else None


def _compared(summary: Summary, ranked: Sequence[str]) -> Answer:
    best, others = ranked[0], ranked[1:]
    rows = [against(summary, best)[other] for other in others]
    unsure = [row.baseline for row in rows if not _is_better(row)]
    if not unsure:
        headline = f"{_name(best)} is best of {len(ranked)} policies"
    elif all(row.improvement == 0.5 and not row.difference for row in rows):
        headline = f"{listed([_name(one) for one in ranked])} did equally well"
    elif len(unsure) == len(rows) and len(rows) > 1:
        headline = f"No policy is clearly best; {_name(best)} leads"
    else:
        headline = f"{_name(best)} leads, but is not clearly better than {listed([_name(one) for one in unsure])}"
    scores = len(summary.missions) > 1
    return Answer(headline, tuple(_sentence(row, scores=scores) for row in rows[:_MOST_COMPARED]))


def _is_better(row: Comparison) -> bool:
    interval = row.improvement_interval
    return interval is not None and interval[0] > 0.5 and row.episodes >= LEAST_EPISODES


def _sentence(row: Comparison, *, scores: bool) -> str:
    first, second = _name(row.label), _name(row.baseline)
    if row.improvement is None or row.improvement_interval is None:
        return f"{first} and {second} have no episode in common"
    share = f"{row.improvement:.0%} of {counted(row.episodes, 'episode')}"
    low, high = row.improvement_interval
    between = f"({100 * low:.0f} to {100 * high:.0f}%)"
    if row.episodes < LEAST_EPISODES:
        return (
            f"{first} is better than {second} in {share}, which {'is' if row.episodes == 1 else 'are'} too few to tell"
        )
    if _is_better(row):
        return f"{first} beats {second} in {share} {between}{_by_how_much(row, scores=scores)}"
    if high < 0.5:
        return f"{first} is ahead of {second} in the mean of the middle half, but better in only {share} {between}"
    return f"{first} and {second} cannot be told apart: {first} is better in {share} {between}"


def _by_how_much(row: Comparison, *, scores: bool) -> str:
    if row.difference is None:
        return ""
    interval = "" if row.difference_interval is None else f" {interval_text(row.difference_interval)}"
    return f", by a {'score' if scores else 'reward'} of {short_number(row.difference)}{interval} on average"


def _rated(summary: Summary, rows: Sequence[PolicySummary]) -> Answer:
    best, second = rows[0].policy, rows[1].policy
    met = [one for row in summary.within_mixes if row.mission is None for one in (row, row.swapped())]
    pair = next((row for row in met if (row.label, row.baseline) == (best, second)), None)
    headline = f"{_name(best)} is rated highest of {len(rows)} policies"
    if pair is None or not _is_better(pair):
        headline += f", but not clearly above {_name(second)}"
    ratings = [
        f"{_name(row.policy)} is rated {rating_text(row.rating, row.rating_interval)}"
        for row in rows[: 1 + _MOST_COMPARED]
    ]
    return Answer(headline, (*([_sentence(pair, scores=False)] if pair is not None else []), *ratings))


def _alone(summary: Summary, label: str) -> Answer:
    rows = [row for row in summary.by_mission if row.label == label and row.episodes]
    return Answer(
        f"{_name(label)} played {counted(sum(row.episodes for row in rows), 'episode')} on "
        f"{rows[0].mission if len(rows) == 1 else counted(len(rows), 'mission')}",
        tuple(_found(row) for row in rows) if len(rows) == 1 else (),
    )


def _found(row: LabelSummary) -> str:
    interval = "" if row.interval is None else f" {interval_text(row.interval)}"
    return f"The interquartile mean of its rewards is {short_number(row.iqm)}{interval}"


def _name(label: str) -> str:
    return shorten(label, _LONGEST_NAME)
