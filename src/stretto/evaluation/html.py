"""A report as one page that needs no other file, and no network: its plots are SVG, drawn here.

Plots give places along the axis in percent and everything else in pixels, so that they fill any width and their text
stays as large as the text around them. Whatever was named by users passes through `_text`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from statistics import median, quantiles
from typing import Any

from stretto.evaluation.bootstrap import Interval
from stretto.evaluation.records import EpisodeRecord
from stretto.evaluation.report import Report, interval_text, short_number, shorten
from stretto.evaluation.statistics import counted_rewards, has_result, seconds_taken
from stretto.evaluation.summary import Summary

MOST_POINTS = 250  # episodes in a row of a plot: more are a smear, and make the page slow
MOST_FAILURES = 200
MOST_ROWS = 40  # of a table that is shown as high as it is; a higher one scrolls in a box
_LONG_NAME = 16  # characters: a longer one is broken into lines, which should not be too many
_LONGEST_HEAD = 40
_NARROWEST = 270  # pixels that the narrowest plot has for the text of a row
_REWARD = "reward of an agent in an episode"
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}

# The colours of policies lie 23 or more apart in CIELAB, for all eyes and for each kind of colour blindness, and have a
# contrast of 4.5 to 1 with what is behind them. Beyond six they repeat: a name always stands beside its colour.
_STYLE = files("stretto.evaluation").joinpath("report.css").read_text("utf-8")


def render_html(report: Report) -> str:
    """Return the page, as the text of a file."""
    plan = {key: value for key, value in report.plan.items() if key != "timing"}
    sections = {
        "Results": _results(report),
        "Rewards": _distributions(report),
        "Comparison": _comparison(report),
        "Improvement": _improvement(report),
        "Statistics": _game_statistics(report),
        "Timing": _timing(report),
        "Failures": _failures(report.records),
        "Plan": _facts(plan),
    }
    sizes = [(len(report.summary.labels), "policies"), (len(report.summary.missions), "missions")]
    sizes += [(len(report.records), "episodes"), (sum(not has_result(record) for record in report.records), "failed")]
    links = "".join(f'<a href="#{title.lower()}">{title}</a>' for title in sections)
    texts = {title: text or '<p class="soft">Nothing to show.</p>' for title, text in sections.items()}
    body = "".join(f'<section id="{name.lower()}"><h2>{name}</h2>\n{text}</section>\n' for name, text in texts.items())
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Evaluation</title>\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>\n{_STYLE}</style></head><body>\n<h1>Evaluation</h1>"
        f'<p class="soft">{" · ".join(f"{what}: {size:,}" for size, what in sizes)}</p>\n<nav>{links}</nav>\n'
        f"{body}</body></html>\n"
    )


def _results(report: Report) -> str:
    summary = report.summary
    rules = {
        "exclude": "An episode that failed for one policy is left out for all of them; only a policy that has no result "
        "at all takes none away from the others.",
        "worst": "A failed episode counts as the worst reward that anybody got on its mission; where nobody got one, it is "
        "left out.",
    }
    table = [
        [
            *(row.mission or "all missions", row.label, f"{row.episodes:,}"),
            *(short_number(row.reward), short_number(row.iqm), interval_text(row.interval), short_number(row.steps)),
            *(f"{row.overdue:,}", f"{row.left_out:,}", f"{row.failures:,}"),
        ]
        for row in (summary.overall if len(summary.missions) > 1 else ()) + summary.by_mission
    ]
    heads = ["mission", "policy", "episodes", "reward", "IQM", "95% interval", "steps", "overdue", "left out"]
    note = (
        "Rewards are summed over an episode and are means of its agents. IQM is the interquartile mean: that of the "
        f"middle half of the episodes. Overdue counts the deadlines struck. {rules[summary.failed]}"
    )
    return f"<p>{note}</p>{_table([*heads, 'failed'], table, names=2)}{_mixes(summary)}" if table else ""


def _mixes(summary: Summary) -> str:
    table = [
        [
            *(row.mission or "all missions", row.label, row.policy, f"{row.episodes:,}"),
            *(short_number(row.reward), short_number(row.iqm), interval_text(row.interval)),
        ]
        for row in summary.by_policy
        if row.mission is not None or len(summary.missions) > 1
    ]
    heads = ["mission", "mix", "policy", "episodes", "reward", "IQM", "95% interval"]
    note = "Rewards are means of the agents that followed the policy, over the episodes that did not fail."
    return f"<h3>Policies of a mix</h3><p>{note}</p>{_table(heads, table, names=3)}" if table else ""


def _distributions(report: Report) -> str:
    counted = counted_rewards(report.records, report.summary.failed)
    marks = {(row.mission, row.label): row.iqm for row in report.summary.by_mission}
    plots = []
    for mission, points in report.points(counted):
        axis = _Axis.over([value for found in points.values() for _, value in found], _REWARD)
        rows = [
            _Row(label, f"n = {len(found):,}", _colour(report, label), _strip(axis, found, marks[mission, label]))
            for label, found in points.items()
        ]
        plots.append(_plot(mission, f"Rewards of the episodes on {mission}", axis, rows))
    note = "Dots are episodes, boxes their middle half, whiskers reach to the extremes. A diamond is the IQM."
    return _plots(note, plots)


def _comparison(report: Report) -> str:
    summary = report.summary
    parts = {name: [row for row in summary.by_mission if row.mission == name] for name in summary.missions}
    if len(parts) > 1:
        parts = {"All missions": list(summary.overall), **parts}
    plots = []
    for name, found in parts.items():
        ends = [value for row in found for value in (row.iqm, *(row.interval or ()))]
        axis = _Axis.over(ends, f"IQM of the {_REWARD}")
        rows = [_estimate(axis, row.label, _colour(report, row.label), row.iqm, row.interval) for row in found]
        plots.append(_plot(name, f"Interquartile means on {name}, with 95% intervals", axis, rows))
    note = "Interquartile means and their 95% intervals, of a bootstrap stratified by mission. "
    return _plots(note + "Over all missions, episodes are pooled as they are.", plots)


def _improvement(report: Report) -> str:
    compared = [row for row in report.summary.comparisons if row.episodes]
    pooled = [row for row in compared if row.mission is None]
    chance = _Axis(0.0, 1.0, "share of the episodes in which the first is better")
    ends = [value for row in pooled for value in (0.0, row.difference, *(row.difference_interval or ()))]
    gain = _Axis.over(ends, "reward of the first minus reward of the second")
    chances, gains = [], []
    for row in pooled:
        first = shorten(row.label, max(9, 18 - len(row.baseline)))
        pair, colour = f"{first} vs {shorten(row.baseline, 18 - len(first))}", _colour(report, row.label)
        chances.append(_estimate(chance, pair, colour, row.improvement, row.improvement_interval))
        gains.append(_estimate(gain, pair, colour, row.difference, row.difference_interval))
    plots = [
        _plot("Probability of improvement", "How often one policy is better than another", chance, chances, rule=0.5),
        _plot("Mean difference", "How much better one policy is than another", gain, gains, rule=0.0),
    ]
    heads = ["mission", "first", "second", "episodes", "improvement", "95% interval", "difference", "95% interval"]
    table = [
        [
            *(row.mission or "all missions", row.label, row.baseline, f"{row.episodes:,}"),
            *(short_number(row.improvement), interval_text(row.improvement_interval)),
            *(short_number(row.difference), interval_text(row.difference_interval)),
        ]
        for row in compared
        if row.mission is not None
    ]
    note = "Episode by episode, on the same mission with the same seed; a tie counts one half. Bars are 95% intervals."
    return _plots(note, plots) + "<h3>By mission</h3>" + _table(heads, table, names=3) if pooled else ""


def _game_statistics(report: Report) -> str:
    text = ""
    for mission in report.summary.missions:
        rows = [row for row in report.summary.by_mission if row.mission == mission]
        names = sorted({name for row in rows for name in row.statistics})
        table = [[name, *(short_number(row.statistics.get(name, {}).get("mean")) for row in rows)] for name in names]
        if table:
            heads = ["mean over episodes", *_short_heads([row.label for row in rows])]
            text += f"<h3>{_text(mission)}</h3>{_table(heads, table)}"
    return text


def _short_heads(labels: Sequence[str]) -> Sequence[str]:
    """Return labels short enough not to make the heads of all columns high, or as they are if that made two alike."""
    short = [shorten(label, _LONGEST_HEAD) for label in labels]
    return short if len(set(short)) == len(set(labels)) else labels


def _timing(report: Report) -> str:
    seconds = {record.key: seconds_taken(record) for record in report.records if seconds_taken(record)}
    speeds = {(row.mission, row.label): row.timing.get("steps_per_second") for row in report.summary.by_mission}
    plots, table = [], []
    for mission, points in report.points(seconds):
        axis = _Axis.over([0.0, *(value for found in points.values() for _, value in found)], "seconds an episode")
        rows = []
        for label, found in points.items():
            took = [value for _, value in found] or [0.0]
            total, middle = math.fsum(took), median(took)
            rows.append(_Row(label, f"{short_number(total)} s", _colour(report, label), _strip(axis, found, middle)))
            numbers = map(short_number, (total, middle, max(took), speeds[mission, label]))
            table.append([mission, label, f"{len(found):,}", *numbers])
        plots.append(_plot(mission, f"Seconds that the episodes on {mission} took", axis, rows))
    heads = ["mission", "policy", "episodes", "seconds", "median", "longest", "steps/s"]
    note = "What the episodes took by the clock, on which nothing else here depends. A diamond is the median."
    text = _plots(note, plots) + _table(heads, table, names=2) if seconds else ""
    timing = report.plan.get("timing", {})
    return text + _facts(timing if isinstance(timing, Mapping) else {"seconds": timing})


def _failures(records: Iterable[EpisodeRecord]) -> str:
    failed = [record for record in records if not has_result(record)]
    text = ""
    for record in failed[:MOST_FAILURES]:
        failure = record.failure
        facts: dict[str, Any] = {"seed": record.seed, "steps played": record.steps}
        kind, message, blocks = "InvalidReward", f"the reward is {record.reward}", ""
        if failure is not None:
            kind, message = failure.kind, failure.message
            facts |= {"policy": failure.policy, "agent": failure.agent, "at step": failure.step}
            for title, code in (("Play it again", failure.reproduce), ("Traceback", failure.traceback)):
                blocks += f"<h3>{title}</h3><pre><code>{_text(code)}</code></pre>" if code else ""
        text += (
            f'<details><summary><span class="kind">{_text(kind)}</span> {_text(record.mission)} · {_text(record.label)} · '
            f"episode {record.episode}: {_text(message)}</summary>{_facts(facts)}{blocks}</details>\n"
        )
    if len(failed) > MOST_FAILURES:
        text += f"<p>There are {len(failed) - MOST_FAILURES:,} more in episodes.jsonl.</p>"
    return text or "<p>No episode failed.</p>"


@dataclass(frozen=True, slots=True)
class _Axis:
    """The range of values that the width of a plot stands for."""

    low: float
    high: float
    name: str

    @classmethod
    def over(cls, values: Iterable[float | None], name: str) -> _Axis:
        found = [value for value in values if value is not None] or [0.0]
        low, high = min(found), max(found)
        largest = max(abs(low), abs(high))
        if high - low <= 1e-9 * largest or largest < 1e-280:
            margin = 0.05 * largest if largest > 1e-280 else 0.5
            low, high = low - margin, high + margin
        return cls(low, high, name)

    def at(self, value: float) -> str:
        return f"{min(100, max(0, 5 + 90 * (value - self.low) / (self.high - self.low))):.2f}%"

    def ticks(self) -> list[tuple[float, str]]:
        """Return some round numbers, and their texts."""
        least = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor for factor in (1, 2, 5, 10, 20) if factor * power >= least * 0.999) * power
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        largest = max(abs(self.low), abs(self.high))
        form = f",.{digits}f" if digits < 6 and largest < 1e6 else f".{math.floor(math.log10(largest / step)) + 1}g"
        places = range(math.ceil(self.low / step - 1e-6), math.floor(self.high / step + 1e-6) + 1)
        found = [(step * place, f"{step * place:{form}}") for place in places]
        # Long texts would run into each other where the plot is narrow.
        return found if max(len(text) for _, text in found) < 8 else found[::2]


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a plot: a name, a text to the right of it or below, and under them marks around a height of zero."""

    name: str
    detail: str
    colour: int
    marks: str


def _plot(caption: str, alternative: str, axis: _Axis, rows: Sequence[_Row], rule: float | None = None) -> str:
    beside = all(map(_in_one_line, rows))
    below, detail = (0, 'x="100%" y="14" text-anchor="end"') if beside else (16, 'y="30"')
    height = 50 + below
    bottom = height * len(rows) + 4
    parts = [f"<title>{_text(alternative)}</title>"]
    for value, text in axis.ticks():
        parts.append(f'<line x1="{axis.at(value)}" x2="{axis.at(value)}" y1="0" y2="{bottom}"/>')
        parts.append(f'<text class="soft" x="{axis.at(value)}" y="{bottom + 15}" text-anchor="middle">{text}</text>')
    if rule is not None:
        parts.append(f'<line class="rule" x1="{axis.at(rule)}" x2="{axis.at(rule)}" y1="0" y2="{bottom}"/>')
    for place, row in enumerate(rows):
        parts.append(
            f'<g class="c{row.colour}" transform="translate(0,{height * place})"><title>{_text(row.name)}: {row.detail}'
            f'</title><text class="name" y="14">{_text(_shown(row))}</text><text class="soft" {detail}>{row.detail}</text>'
            f'<g transform="translate(0,{34 + below})">{row.marks}</g></g>\n'
        )
    parts.append(f'<text class="soft" x="50%" y="{bottom + 34}" text-anchor="middle">{_text(axis.name)}</text>')
    svg = f'<svg role="img" height="{bottom + 42}">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{_text(caption)}</figcaption>{svg}</figure>\n"


def _shown(row: _Row) -> str:
    return shorten(row.name, 24)


def _in_one_line(row: _Row) -> bool:
    """Whether the texts of a row stand beside each other in the narrowest plot, by what letters take in most fonts."""
    name = sum(
        8 if "0" <= letter <= "z" and letter not in "mw" and not letter.isupper() else 12 for letter in _shown(row)
    )
    return name + 7 * len(row.detail) <= _NARROWEST


def _strip(axis: _Axis, points: Sequence[tuple[int, float]], mark: float | None) -> str:
    """Draw episodes as dots, with a box around their middle half."""
    if not points or mark is None:
        return ""
    ordered = sorted(points, key=lambda point: point[1])
    values = [value for _, value in ordered]
    text = f'<line class="whisker" x1="{axis.at(values[0])}" x2="{axis.at(values[-1])}"/>'
    if len(values) > 1:
        low, _, high = (axis.at(value) for value in quantiles(values, n=4, method="inclusive"))
        width = float(high[:-1]) - float(low[:-1])
        text += f'<rect class="box" x="{low}" width="{width:.2f}%" y="-10" height="20" rx="2"/>'
    every = -(-len(ordered) // MOST_POINTS)
    for episode, value in ordered[::every]:
        # Steps of the golden ratio: neighbours lie apart, and an episode lies at the same height in every plot.
        height = 16 * (episode * 0.618034 % 1) - 8
        text += f'<circle class="dot" cx="{axis.at(value)}" cy="{height:.1f}" r="2.6"><title>episode {episode}: '
        text += f"{short_number(value)}</title></circle>"
    return text + _diamond(axis, mark)


def _estimate(axis: _Axis, name: str, colour: int, value: float | None, interval: Interval | None) -> _Row:
    """Draw a value and its interval, as a point and a bar."""
    bar = "" if interval is None else f'<line class="span" x1="{axis.at(interval[0])}" x2="{axis.at(interval[1])}"/>'
    text = short_number(value) if interval is None else f"{short_number(value)} {interval_text(interval)}"
    return _Row(name, text, colour, bar if value is None else bar + _diamond(axis, value))


def _diamond(axis: _Axis, value: float) -> str:
    return f'<svg x="{axis.at(value)}" width="1"><path class="mark" d="M0-8L6 0L0 8L-6 0Z"/></svg>'


def _plots(note: str, plots: Sequence[str]) -> str:
    return f'<p>{note}</p><div class="plots">{"".join(plots)}</div>\n' if plots else ""


def _colour(report: Report, label: str) -> int:
    return report.summary.labels.index(label) % 6


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """Return a table that scrolls in a box of its own; its first `names` columns are names, all others figures."""
    rows = list(rows)
    text = "".join(_cell('th scope="col"', head, left=i < names, name=True) for i, head in enumerate(heads))
    lines = "".join(
        f"<tr>{''.join(_cell('td', cell, left=i < names, name=i < names) for i, cell in enumerate(row))}</tr>\n"
        for row in rows
    )
    box = "scroll high" if len(rows) > MOST_ROWS else "scroll"
    return (
        f'<div class="{box}" tabindex="0"><table><thead><tr>{text}</tr></thead><tbody>\n{lines}</tbody></table></div>\n'
    )


def _cell(tag: str, text: str, *, left: bool, name: bool) -> str:
    """Return a cell of a table; a name may be broken into lines where it is long, a figure never."""
    long = name and len(text) > _LONG_NAME
    classes = " ".join(["left"] * left + ["long"] * long)
    attribute = f' class="{classes}"' if classes else ""
    shown = re.sub("([._/:,=])(?=[^0-9])", r"\1<wbr>", _text(text)) if long else _text(text)
    return f"<{tag}{attribute}>{shown}</{tag.partition(' ')[0]}>"


def _facts(facts: Mapping[str, Any]) -> str:
    known = {name: value for name, value in facts.items() if value is not None}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}
    lines = "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in texts.items())
    return f"<dl>{lines}</dl>\n" if lines else ""


def _text(text: str) -> str:
    return escape(text.translate(_CONTROLS))
