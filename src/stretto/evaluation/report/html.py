"""A report as one page that needs no other file, and no network: the answer first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from stretto.evaluation.records import RecordKey
from stretto.evaluation.report.answer import Answer, answer_of
from stretto.evaluation.report.failure_section import failure_section
from stretto.evaluation.report.failures import FailureGroup, group_failures
from stretto.evaluation.report.film_section import film_section
from stretto.evaluation.report.findings import Findings
from stretto.evaluation.report.identity_section import identity_section
from stretto.evaluation.report.page import figures, invocations, page, versions
from stretto.evaluation.report.page_elements import facts_list, table, text
from stretto.evaluation.report.plots import Axis, Row, estimate, plot, strip, versus
from stretto.evaluation.report.statistics_section import statistics_section
from stretto.evaluation.report.text_table import pooled_rows
from stretto.evaluation.report.wording import (
    counted,
    interval_text,
    listed,
    score_interval_text,
    score_text,
    short_number,
)
from stretto.evaluation.statistics.summarize import counted_rewards
from stretto.evaluation.statistics.summary import Summary
from stretto.run_folder import CHANGES, IDENTITY, INVOCATIONS, TIMING

_REWARD = "reward of an agent in an episode"


def render_html(report: Findings, films: Mapping[RecordKey, Path] | None = None) -> str:
    """Return the page, as the text of a file. `films` of episodes are embedded; the page has no section that is empty."""
    groups = group_failures(report.records)
    sections = {
        "Failures": failure_section(groups),
        "Results": _results(report),
        "Comparison": _comparison(report),
        "Improvement": _improvement(report),
        "Ratings": _ratings(report.summary),
        "Films": film_section(films or {}),
        "Rewards": _distributions(report),
        "Statistics": statistics_section(report.summary),
        "Timing": _timing(report),
        "Plan": facts_list(
            {key: value for key, value in report.plan.items() if key not in (TIMING, IDENTITY, CHANGES)}
        ),
        "Identity": identity_section(report.plan),
    }
    return page("Evaluation", _head(report, groups), sections)


def render_fragment(report: Findings) -> str:
    """Return the answer and the table of results, for a page of somebody else."""
    return f"{_answer(answer_of(report.summary), 'strong')}{_sizes(report)}{_results_table(report.summary)}"


# ---- the answer ----


def _head(report: Findings, groups: Sequence[FailureGroup]) -> str:
    failed = sum(len(group.records) for group in groups)
    warning = ""
    if failed:
        count = "count as the worst seen" if report.summary.failed == "worst" else "do not count"
        what = f"{failed:,} of {counted(len(report.records), 'episode')} failed and {count}"
        warning = f'<p class="bad"><a href="#failures">{what}</a></p>\n'
    about = f"{_sizes(report)}{invocations(report.plan.get(TIMING))}{versions(report.plan)}"
    return f"{_answer(answer_of(report.summary), 'h1')}{warning}{about}"


def _answer(answer: Answer, tag: str) -> str:
    reasons = "".join(f"<li>{text(reason)}</li>" for reason in answer.reasons)
    return f"<{tag}>{text(answer.headline)}</{tag}>\n" + (f'<ul class="answer">{reasons}</ul>\n' if reasons else "")


def _sizes(report: Findings) -> str:
    summary = report.summary
    policies = {row.policy for row in summary.by_policy} or summary.labels
    sizes = [(len(policies), "policy"), (len(summary.missions), "mission"), (len(report.records), "episode")]
    return f'<p class="soft">{" · ".join(counted(size, noun) for size, noun in sizes)}</p>\n'


# ---- results ----


def _results(report: Findings) -> str:
    summary = report.summary
    rules = {
        "exclude": "An episode that failed for one policy is left out for all of them. A policy without any result on a "
        "mission is ignored there.",
        "worst": "A failed episode counts as the worst reward that anybody got on its mission; where nobody got one, it is "
        "left out.",
    }
    note = (
        "Rewards are summed over an episode and are means of its agents. IQM is the interquartile mean: that of the "
        f"middle half of the episodes. {rules[summary.failed]}"
    )
    rows = _results_table(summary)
    return f"<p>{note}</p>{_scale_note(summary)}{rows}{_mixes(summary)}" if rows else ""


def _results_table(summary: Summary) -> str:
    rows = [*pooled_rows(summary), *summary.by_mission]
    scored = rows if summary.normalize else []
    columns = [
        ("mission", [row.mission or "all missions" for row in rows]),
        ("policy", [row.label for row in rows]),
        ("episodes", [f"{row.episodes:,}" for row in rows]),
        ("reward", [short_number(row.reward) for row in rows]),
        ("IQM", [short_number(row.iqm) for row in rows]),
        ("95% interval", [interval_text(row.interval) for row in rows]),
        ("score", [score_text(row.score) for row in scored]),
        ("95% interval", [score_interval_text(row.score_interval) for row in scored]),
        ("steps", [short_number(row.steps) for row in rows]),
        ("overdue", _if_any([row.overdue for row in rows])),
        ("left out", _if_any([row.left_out for row in rows])),
        ("failed", _if_any([row.failures for row in rows])),
    ]
    shown = [(head, cells) for head, cells in columns if cells]
    lines = list(zip(*(cells for _, cells in shown), strict=True))
    return table([head for head, _ in shown], lines, names=2) if rows else ""


def _if_any(counts: Sequence[int]) -> list[str]:
    return [f"{count:,}" for count in counts] if any(counts) else []


def _scale_note(summary: Summary) -> str:
    if summary.normalize is None:
        several = min(len(summary.missions), len(summary.labels)) > 1
        note = "Rewards of different missions are not pooled: their scales differ. Reference policies would make them "
        return f"<p>{note}comparable (--normalize LOW:HIGH).</p>" if several else ""
    low, high = (text(label) for label in summary.normalize)
    note = f"A score is 0 at the mean reward of {low} on a mission, and 1 at that of {high}; scores are IQMs."
    if summary.unscaled:
        note += f" {high} is no better than {low} on {text(listed(summary.unscaled))}, where there are no scores."
    return f"<p>{note}</p>"


def _mixes(summary: Summary) -> str:
    one = len({row.label for row in summary.by_policy}) == 1
    cells = [
        [
            *([row.mission or ""] if one else [row.mission or "", row.label]),
            *(row.policy, f"{row.episodes:,}"),
            *(short_number(row.reward), short_number(row.iqm), interval_text(row.interval)),
        ]
        for row in summary.by_policy
        if row.mission is not None
    ]
    names = ["mission", "policy"] if one else ["mission", "mix", "policy"]
    heads = [*names, "episodes", "reward", "IQM", "95% interval"]
    note = "Rewards are means of the agents that followed the policy, over the episodes that did not fail."
    return f"<h3>Policies of a mix</h3><p>{note}</p>{table(heads, cells, names=len(names))}" if cells else ""


def _comparison(report: Findings) -> str:
    summary = report.summary
    plots = []
    for name in ("All missions", *summary.missions):
        pooled = name == "All missions" and pooled_rows(summary)
        rows = list(pooled or [row for row in summary.by_mission if row.mission == name])
        what = "normalized score" if pooled else _REWARD
        values = {row.label: (row.score, row.score_interval) if pooled else (row.iqm, row.interval) for row in rows}
        plots.append(_estimates(report, name, f"IQM of the {what}", values))
    note = "Interquartile means and their 95% intervals, of a bootstrap stratified by mission."
    return figures(note, plots) if len(summary.labels) > 1 else ""


def _estimates(report: Findings, name: str, what: str, values: Mapping[str, tuple[Any, Any]]) -> str:
    """Plot values with intervals; nothing if there are none."""
    found = {label: pair for label, pair in values.items() if pair[0] is not None}
    axis = Axis.over([end for value, interval in found.values() for end in (value, *(interval or ()))], what)
    rows = [estimate(axis, label, _colour(report, label), *pair) for label, pair in found.items()]
    return plot(name, f"{what} on {name}, with 95% intervals", axis, rows) if rows else ""


def _improvement(report: Findings) -> str:
    compared = [row for row in report.summary.comparisons if row.episodes]
    pooled = [row for row in compared if row.mission is None]
    unit = "score" if len(report.summary.missions) > 1 else "reward"
    chance = Axis(0.0, 1.0, "share of the episodes in which the first is better")
    ends = [value for row in pooled for value in (0.0, row.difference, *(row.difference_interval or ()))]
    gain = Axis.over(ends, f"{unit} of the first minus {unit} of the second")
    chances, gains = [], []
    for row in pooled:
        pair, colour = versus(row.label, row.baseline), _colour(report, row.label)
        chances.append(estimate(chance, pair, colour, row.improvement, row.improvement_interval))
        if row.difference is not None:
            gains.append(estimate(gain, pair, colour, row.difference, row.difference_interval))
    plots = [
        plot("Probability of improvement", "How often one policy is better than another", chance, chances, rule=0.5)
    ]
    if gains:
        plots.append(plot("Mean difference", "How much better one policy is than another", gain, gains, rule=0.0))
    heads = ["mission", "first", "second", "episodes", "improvement", "95% interval", "difference", "95% interval"]
    cells = [
        [
            *(row.mission or "all missions", row.label, row.baseline, f"{row.episodes:,}"),
            *(short_number(row.improvement), interval_text(row.improvement_interval)),
            *(short_number(row.difference), interval_text(row.difference_interval)),
        ]
        for row in compared
        if row.mission is not None
    ]
    note = "Episode by episode, on the same mission with the same seed; a tie counts one half. Bars are 95% intervals."
    return figures(note, plots) + "<h3>By mission</h3>" + table(heads, cells, names=3) if pooled else ""


def _ratings(summary: Summary) -> str:
    rated = [row for row in summary.by_policy if row.mission is None and row.rating is not None]
    plots = []
    for mix in dict.fromkeys(row.label for row in rated):
        rows = sorted((row for row in rated if row.label == mix), key=lambda row: -(row.rating or 0.0))
        axis = Axis.over([end for row in rows for end in (row.rating, *(row.rating_interval or ()))], "rating")
        lines = [estimate(axis, row.policy, i % 6, row.rating, row.rating_interval) for i, row in enumerate(rows)]
        plots.append(plot(mix, f"Ratings of the policies of {mix}, with 95% intervals", axis, lines))
    heads = ["policy", "played with", "episodes", "better in", "95% interval"]
    cells = [
        [
            one.label,
            one.baseline,
            f"{one.episodes:,}",
            short_number(one.improvement),
            interval_text(one.improvement_interval),
        ]
        for row in summary.within_mixes
        for one in (row, row.swapped())
        if row.mission is None
    ]
    note = (
        "Ratings are on the scale of Elo: of two policies that are 400 points apart, the higher one is expected to get more "
        "reward than the other ten times as often. Their mean is 1500."
    )
    return (
        figures(note, plots) + "<h3>Who played with whom</h3>" + table(heads, sorted(cells), names=2) if rated else ""
    )


def _distributions(report: Findings) -> str:
    rewards = counted_rewards(report.records, report.summary.failed)
    marks = {(row.mission, row.label): row.iqm for row in report.summary.by_mission}
    plots = []
    for mission, points in report.points(rewards):
        axis = Axis.over([value for found in points.values() for _, value in found], _REWARD)
        rows = [
            Row(label, f"n = {len(found):,}", _colour(report, label), strip(axis, found, marks[mission, label]))
            for label, found in points.items()
            if found
        ]
        plots.append(plot(mission, f"Rewards of the episodes on {mission}", axis, rows) if rows else "")
    note = "Dots are episodes, boxes their middle half, whiskers reach to the extremes. A diamond is the IQM."
    return figures(note, plots)


def _timing(report: Findings) -> str:
    seconds = {record.key: record.seconds for record in report.records if record.seconds}
    speeds = {(row.mission, row.label): row.timing.get("steps_per_second") for row in report.summary.by_mission}
    plots, cells = [], []
    for mission, points in report.points(seconds):
        axis = Axis.over([0.0, *(value for found in points.values() for _, value in found)], "seconds an episode")
        rows = []
        for label, found in points.items():
            took = [value for _, value in found] or [0.0]
            total, middle = math.fsum(took), median(took)
            rows.append(Row(label, f"{short_number(total)} s", _colour(report, label), strip(axis, found, middle)))
            numbers = map(short_number, (total, middle, max(took), speeds[mission, label]))
            cells.append([mission, label, f"{len(found):,}", *numbers])
        plots.append(plot(mission, f"Seconds that the episodes on {mission} took", axis, rows))
    heads = ["mission", "policy", "episodes", "seconds", "median", "longest", "steps/s"]
    note = "What the episodes took by the clock, on which nothing else here depends. A diamond is the median."
    words = figures(note, plots) + table(heads, cells, names=2) if seconds else ""
    timing = report.plan.get(TIMING, {})
    timing = timing if isinstance(timing, Mapping) else {"seconds": timing}
    return words + facts_list({name: value for name, value in timing.items() if name != INVOCATIONS})


def _colour(report: Findings, label: str) -> int:
    return report.summary.labels.index(label) % 6
