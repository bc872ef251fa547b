"""Draws how agents adapt within a trial: the return of each episode in held-out trials, over the steps of training.

Run it with: python benchmarks/draw_adaptation.py RUN docs/guide/adaptation.svg
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draw_learning import read

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 820, 300, 50, 90, 34, 40
COLOURS = "#888888", "#3b7dd8", "#d9822b", "#3c9d5b"

STYLE = """
text { font: 13px sans-serif; fill: #222 } .axis { fill: #666; font-size: 11px } .tick { stroke: #88888840 }
polyline { fill: none; stroke-width: 2 } polygon { opacity: 0.2 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .axis { fill: #aaa } }
"""


def drawn(evaluations: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a picture: a line with its 95% band for each episode of a trial."""
    numbers = [one[side] for played in evaluations for one in played["by_episode"] for side in ("low", "high")]
    low, high, most = int(min(numbers)) - 1, int(max(numbers)) + 1, evaluations[-1]["steps"]

    def place(steps: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * steps / most
        return f"{x:.1f},{TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low):.1f}"

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    yield f"<style>{STYLE}</style>"
    yield '<text x="4" y="18">return in held-out trials, by episode of the trial; bands are 95% intervals over trials</text>'
    for value in range(low, high + 1, max(1, (high - low) // 5)):
        x, y = place(0, value).split(",")
        yield f'<line class="tick" x1="{x}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text class="axis" x="4" y="{float(y) + 4:.1f}">{value}</text>'
    for number in range(len(evaluations[0]["by_episode"])):
        found = [(one["steps"], one["by_episode"][number]) for one in evaluations]
        colour = COLOURS[number % len(COLOURS)]
        band = [place(steps, one["high"]) for steps, one in found]
        band += [place(steps, one["low"]) for steps, one in reversed(found)]
        yield f'<polygon fill="{colour}" points="{" ".join(band)}"/>'
        line = [place(steps, one["return"]) for steps, one in found]
        yield f'<polyline stroke="{colour}" points="{" ".join(line)}"/>'
        x, y = line[-1].split(",")
        yield f'<text x="{float(x) + 6:.1f}" y="{float(y) + 4:.1f}">episode {number + 1}</text>'
    for steps in (0, most // 2, most):
        x, _ = place(steps, low).split(",")
        yield f'<text class="axis" x="{x}" y="{HEIGHT - 22}" text-anchor="middle">{steps:,}</text>'
    yield f'<text class="axis" x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">environment steps</text>'
    yield "</svg>"


if __name__ == "__main__":
    run, out = map(Path, sys.argv[1:])
    evaluations = [row["evaluation"] for row in read(run) if "evaluation" in row]
    out.write_text("\n".join(drawn(evaluations)) + "\n", "utf-8")
