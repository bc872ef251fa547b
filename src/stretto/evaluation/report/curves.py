"""Curves as SVG: numbers over steps, each with a band around it where its uncertainty is known.

As in other plots, places along the width are in percent, so that a plot fills any width and its text keeps its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.evaluation.report.page_elements import text
from stretto.evaluation.report.plots import Axis
from stretto.evaluation.report.wording import short_number

_HEIGHT = 170
"""Pixels between the lowest and the highest value."""

_LEFT = 5.0
"""How far from the left edge an axis begins, in percent, as in other plots."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Values at some places along the axis; `lows` and `highs` are the edges of a band, if there is one."""

    name: str
    colour: int
    places: Sequence[float]
    values: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()


def curves(caption: str, alternative: str, name: str, lines: Sequence[Curve]) -> str:
    """Draw curves above one axis, called `name`; nothing if none has two points."""
    drawn = [line for line in lines if len(line.places) > 1]
    if not drawn:
        return ""
    across = Axis.over([0.0, *(place for line in drawn for place in line.places)], name)
    up = Axis.over([value for line in drawn for part in (line.values, line.lows, line.highs) for value in part], "")
    parts = [f"<title>{text(alternative)}</title>"]
    bottom = _height(up, up.low) + 4
    heights = [(_height(up, value), words) for value, words in up.ticks()]
    parts += [f'<line x1="{_LEFT}%" x2="95%" y1="{height:.1f}" y2="{height:.1f}"/>' for height, _ in heights]
    # What is drawn has its own coordinates, which are stretched to the width; its lines stay as thin as they are.
    parts.append(
        f'<svg x="{_LEFT}%" y="0" width="{100 - 2 * _LEFT}%" height="{bottom}" viewBox="0 0 1000 {bottom:.0f}" '
        f'preserveAspectRatio="none">{"".join(_drawn(line, across, up) for line in drawn)}</svg>'
    )
    parts += [f'<text class="soft" y="{height - 3:.1f}">{words}</text>' for height, words in heights]
    for value, words in across.ticks():
        parts.append(f'<text class="soft" x="{across.at(value)}" y="{bottom + 15}" text-anchor="middle">{words}</text>')
    parts.append(f'<text class="soft" x="50%" y="{bottom + 34}" text-anchor="middle">{text(name)}</text>')
    svg = f'<svg role="img" height="{bottom + 42:.0f}">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{text(caption)}</figcaption>{_legend(drawn)}{svg}</figure>\n"


def _legend(lines: Sequence[Curve]) -> str:
    """Name the curves, each with its last value."""
    named = [
        f'<span class="c{line.colour} key">{text(line.name)} {short_number(line.values[-1])}</span>' for line in lines
    ]
    return f'<p class="keys">{"".join(named)}</p>'


def _height(up: Axis, value: float) -> float:
    return 12 + _HEIGHT * (1 - (value - up.low) / (up.high - up.low))


def _drawn(line: Curve, across: Axis, up: Axis) -> str:
    def points(values: Sequence[float], places: Sequence[float]) -> str:
        span = across.high - across.low
        return " ".join(
            f"{1000 * (place - across.low) / span:.1f},{_height(up, value):.1f}"
            for place, value in zip(places, values, strict=True)
        )

    band = ""
    if line.lows:
        edge = points(line.lows, line.places) + " " + points(line.highs[::-1], line.places[::-1])
        band = f'<polygon class="band" points="{edge}"/>'
    return f'<g class="c{line.colour}">{band}<polyline class="curve" points="{points(line.values, line.places)}"/></g>'
