"""Draws what agents learned in a run: the mean reward of each, and of all of them in held-out episodes, over steps.

Run it with: python benchmarks/draw_learning.py RUN docs/guide/foundry.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 820, 300, 44, 36, 34, 40
POINTS = 160
"""How many points a line has at most."""

STYLE = """
text { font: 13px sans-serif; fill: #222 } .axis { fill: #666; font-size: 11px } .tick { stroke: #88888840 }
polyline { fill: none; stroke-linejoin: round } .agent { stroke: #3b7dd8; stroke-width: 1; opacity: 0.55 }
.all { stroke: #d9822b; stroke-width: 2.5 } circle { fill: #d9822b }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .axis { fill: #aaa } }
"""


def read(run: Path) -> list[dict[str, Any]]:
    """Return what a run says of its intervals."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


class Scale:
    """Where numbers of steps and rewards are in the picture."""

    def __init__(self, steps: int, reward: float) -> None:
        self.steps, self.reward = steps, reward

    def place(self, steps: float, reward: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * steps / self.steps
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - reward / self.reward)
        return f"{x:.1f},{y:.1f}"

    def line(self, kind: str, points: Sequence[tuple[float, float]]) -> str:
        return f'<polyline class="{kind}" points="{" ".join(self.place(*point) for point in points)}"/>'


def drawn(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a picture."""
    some = rows[:: max(1, len(rows) // POINTS)]
    agents = {
        agent: [(row["steps"], found["return"]) for row in some if (found := row["agents"][agent])["episodes"]]
        for agent in rows[-1]["agents"]
    }
    played = [(row["steps"], row["evaluation"]["return"]) for row in rows if "evaluation" in row]
    most = max(reward for points in (played, *agents.values()) for _, reward in points)
    scale = Scale(rows[-1]["steps"], max(1.0, -(-most // 1)))
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    yield f"<style>{STYLE}</style>"
    yield '<text x="4" y="18">reward an episode: of each agent while it learns, and of all in held-out episodes</text>'
    for reward in range(int(scale.reward) + 1):
        x, y = scale.place(0, reward).split(",")
        yield f'<line class="tick" x1="{x}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text class="axis" x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{reward}</text>'
    for steps in range(0, scale.steps + 1, _tick(scale.steps)):
        x = scale.place(steps, 0).split(",")[0]
        yield f'<text class="axis" x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{steps:,}</text>'
    yield f'<text class="axis" x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">environment steps</text>'
    for points in agents.values():
        yield scale.line("agent", points)
    yield scale.line("all", played)
    for point in played:
        x, y = scale.place(*point).split(",")
        yield f'<circle cx="{x}" cy="{y}" r="3.5"/>'
    yield "</svg>"


def _tick(most: int) -> int:
    """Return 1, 2 or 5 times a power of ten, of which at most 8 fit."""
    return next(step for power in range(12) for base in (1, 2, 5) if most < 8 * (step := base * 10**power))


def main() -> None:
    Path(sys.argv[2]).write_text("\n".join(drawn(read(Path(sys.argv[1])))) + "\n", "utf-8")


if __name__ == "__main__":
    main()
