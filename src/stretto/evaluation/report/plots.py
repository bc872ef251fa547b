"""Plots as SVG.

They give places along the axis in percent and everything else in pixels, so that they fill any width and their text stays
as large as the text around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles

from stretto.evaluation.report.page_elements import text
from stretto.evaluation.report.wording import interval_text, short_number, shorten
from stretto.evaluation.statistics.averages import Interval

MOST_POINTS = 250  # episodes in a row of a plot: more are a smear, and make the page slow
_NARROWEST = 270  # pixels that the narrowest plot has for the text of a row
_SHORTEST_NAME = 18  # characters: names are not made shorter than that, or they would say nothing


@dataclass(frozen=True, slots=True)
class Axis:
    """The range of values that the width of a plot stands for."""

    low: float
    high: float
    name: str

    @classmethod
    def over(cls, values: Iterable[float | None], name: str) -> Axis:
        """Return an axis on which all of `values` have room."""
        found = [value for value in values if value is not None] or [0.0]
        low, high = min(found), max(found)
        largest = max(abs(low), abs(high))
        if high - low <= 1e-9 * largest or largest < 1e-280:
            margin = 0.05 * largest if largest > 1e-280 else 0.5
            low, high = low - margin, high + margin
        return cls(low, high, name)

    def at(self, value: float) -> str:
        """Return where a value lies along the width."""
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
        return found if max(len(words) for _, words in found) < 8 else found[::2]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a plot: a name, a text to the right of it or below, and under them marks around a height of zero."""

    name: str
    detail: str
    colour: int
    marks: str


def plot(caption: str, alternative: str, axis: Axis, rows: Sequence[Row], rule: float | None = None) -> str:
    """Draw rows above one axis; `rule` is a value that all of them are compared with."""
    beside = all(map(_in_one_line, rows))
    below, detail = (0, 'x="100%" y="14" text-anchor="end"') if beside else (16, 'y="30"')
    height = 50 + below
    bottom = height * len(rows) + 4
    parts = [f"<title>{text(alternative)}</title>"]
    for value, words in axis.ticks():
        parts.append(f'<line x1="{axis.at(value)}" x2="{axis.at(value)}" y1="0" y2="{bottom}"/>')
        parts.append(f'<text class="soft" x="{axis.at(value)}" y="{bottom + 15}" text-anchor="middle">{words}</text>')
    if rule is not None:
        parts.append(f'<line class="rule" x1="{axis.at(rule)}" x2="{axis.at(rule)}" y1="0" y2="{bottom}"/>')
    for place, row in enumerate(rows):
        parts.append(
            f'<g class="c{row.colour}" transform="translate(0,{height * place})"><title>{text(row.name)}: {row.detail}'
            f'</title><text class="name" y="14">{text(_shown(row))}</text><text class="soft" {detail}>{row.detail}</text>'
            f'<g transform="translate(0,{34 + below})">{row.marks}</g></g>\n'
        )
    parts.append(f'<text class="soft" x="50%" y="{bottom + 34}" text-anchor="middle">{text(axis.name)}</text>')
    svg = f'<svg role="img" height="{bottom + 42}">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{text(caption)}</figcaption>{svg}</figure>\n"


def versus(first: str, second: str) -> str:
    """Return "first vs second" as the name of a row: both are shortened until they have room in the narrowest plot."""
    most = len(first) + len(second)
    while True:
        one = shorten(first, max(most // 2, most - len(second)))
        words = f"{one} vs {shorten(second, most - len(one))}"
        if most <= _SHORTEST_NAME or _width(words) <= _NARROWEST:
            return words
        most -= 1


def _shown(row: Row) -> str:
    most = len(row.name)
    while most > _SHORTEST_NAME and _width(shorten(row.name, most)) > _NARROWEST:
        most -= 1
    return shorten(row.name, most)


def _width(name: str) -> int:
    """Return how many pixels a name takes, by what letters take in most fonts."""
    return sum(8 if "0" <= letter <= "z" and letter not in "mw" and not letter.isupper() else 12 for letter in name)


def _in_one_line(row: Row) -> bool:
    """Whether the texts of a row stand beside each other in the narrowest plot."""
    return _width(_shown(row)) + 7 * len(row.detail) <= _NARROWEST


def strip(axis: Axis, points: Sequence[tuple[int, float]], mark: float | None) -> str:
    """Draw episodes as dots, with a box around their middle half."""
    if not points or mark is None:
        return ""
    ordered = sorted(points, key=lambda point: point[1])
    values = [value for _, value in ordered]
    drawn = f'<line class="whisker" x1="{axis.at(values[0])}" x2="{axis.at(values[-1])}"/>'
    if len(values) > 1:
        low, _, high = (axis.at(value) for value in quantiles(values, n=4, method="inclusive"))
        width = float(high[:-1]) - float(low[:-1])
        drawn += f'<rect class="box" x="{low}" width="{width:.2f}%" y="-10" height="20" rx="2"/>'
    every = -(-len(ordered) // MOST_POINTS)
    for episode, value in ordered[::every]:
        # Steps of the golden ratio: neighbours lie apart, and an episode lies at the same height in every plot.
        height = 16 * (episode * 0.618034 % 1) - 8
        drawn += f'<circle class="dot" cx="{axis.at(value)}" cy="{height:.1f}" r="2.6"><title>episode {episode}: '
        drawn += f"{short_number(value)}</title></circle>"
    return drawn + _diamond(axis, mark)


def estimate(axis: Axis, name: str, colour: int, value: float | None, interval: Interval | None) -> Row:
    """Draw a value and its interval, as a point and a bar."""
    bar = "" if interval is None else f'<line class="span" x1="{axis.at(interval[0])}" x2="{axis.at(interval[1])}"/>'
    detail = short_number(value) if interval is None else f"{short_number(value)} {interval_text(interval)}"
    return Row(name, detail, colour, bar if value is None else bar + _diamond(axis, value))


def _diamond(axis: Axis, value: float) -> str:
    return f'<svg x="{axis.at(value)}" width="1"><path class="mark" d="M0-8L6 0L0 8L-6 0Z"/></svg>'
