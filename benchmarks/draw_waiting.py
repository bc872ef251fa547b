"""Draws what lockstep and ready-first wait for: runs `stretto collect --trace` both ways, and draws part of the traces.

Four worlds in four workers sleep 20 ms a step, and in one episode of four 100 ms; the policy takes 10 ms a call. These
times are long, so that other programs on the machine hardly show.

Run it with: python benchmarks/draw_waiting.py docs/guide/waiting.svg
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stretto import BlockAnswer, BlockPolicy

WAYS = ("lockstep", "ready-first")
SEED = 2  # with which one of the first four episodes is slow
WORKERS, ROLLOUTS = 4, 12
SHOWN_MS = 600.0
WIDTH, LEFT, RIGHT, ROW, BAR, GAP = 820, 84, 24, 22, 15, 46


class Uneven(gymnasium.Env[Any, Any]):
    """Sleeps 20 ms in every step; in one episode of four, 100 ms."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seconds, self.left = 0.1 if self.np_random.random() < 0.25 else 0.02, 12
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        self.left -= 1
        return np.zeros(3, np.float32), 1.0, self.left == 0, False, {}


class Thinks(BlockPolicy):
    """Computes for 10 ms, for however many worlds."""

    def step_block(self, observations: Any, states: Any, choices: Any) -> BlockAnswer:
        until = time.perf_counter() + 0.01
        while time.perf_counter() < until:
            pass
        return BlockAnswer(np.zeros(observations.shape[:2], np.int64), None)


@dataclass(frozen=True)
class Traced:
    """The spans of a collection in milliseconds since its first step: of the policy, and of the steps in each worker."""

    rows: dict[str, list[tuple[float, float]]]
    total: float


def traced(way: str, folder: Path) -> Traced:
    """Collect, and read the trace."""
    here = Path(__file__)
    path = folder / f"{way}.json"
    words = f"-m {here}:Uneven -p {here}:Thinks --rollouts {ROLLOUTS} --envs {WORKERS} -j {WORKERS} --backend process"
    command = [
        sys.executable,
        "-m",
        "stretto",
        "collect",
        *words.split(),
        "--isolate",
        "--wait",
        way,
        "--quiet",
        f"--seed={SEED}",
    ]
    subprocess.run(
        [*command, "--no-check-reuse", "--out", str(folder / way), f"--trace={path}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    spans = [one for one in json.loads(path.read_bytes())["traceEvents"] if one["ph"] == "X"]
    workers = sorted({one["pid"] for one in spans if one["name"] == "signal"})
    policy = [one for one in spans if one["name"] == "policy step"]
    start = min(one["ts"] for one in policy)

    def times(some: list[dict[str, Any]]) -> list[tuple[float, float]]:
        return [((one["ts"] - start) / 1e3, one["dur"] / 1e3) for one in some]

    rows = {"policy": times(policy)}
    for number, pid in enumerate(workers):
        rows[f"worker {number}"] = times([one for one in spans if one["name"] == "signal" and one["pid"] == pid])
    return Traced(rows, max(at + long for row in rows.values() for at, long in row))


STYLE = """
text { font: 13px sans-serif; fill: #222 } .title { font-weight: bold } .axis { fill: #666; font-size: 11px }
.policy { fill: #d9822b } .step { fill: #3b7dd8 } .lane { fill: #88888818 } .tick { stroke: #88888840 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .axis { fill: #aaa } }
"""


def drawn(found: dict[str, Traced]) -> Iterator[str]:
    """Yield the lines of a picture."""
    scale = (WIDTH - LEFT - RIGHT) / SHOWN_MS
    panel = GAP + ROW * (WORKERS + 1)
    height = panel * len(found) + 24
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    yield f"<style>{STYLE}</style>"
    for number, (way, one) in enumerate(found.items()):
        top = number * panel
        yield f'<text class="title" x="4" y="{top + 20}">{way}: {ROLLOUTS} rollouts in {one.total / 1e3:.1f} s</text>'
        for line, (name, spans) in enumerate(one.rows.items()):
            y = top + 30 + line * ROW
            yield f'<text x="4" y="{y + 12}">{name}</text>'
            yield f'<rect class="lane" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{BAR}"/>'
            kind = "policy" if name == "policy" else "step"
            for at, long in spans:
                if at < SHOWN_MS and long > 1:
                    x, wide = LEFT + at * scale, min(long, SHOWN_MS - at) * scale
                    yield f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{BAR}"/>'
    for tick in range(0, int(SHOWN_MS) + 1, 100):
        x = LEFT + tick * scale
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="30" y2="{height - 18}"/>'
        yield f'<text class="axis" x="{x:.1f}" y="{height - 5}" text-anchor="middle">{tick} ms</text>'
    yield "</svg>"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {way: traced(way, Path(folder)) for way in WAYS}
    Path(sys.argv[1]).write_text("\n".join(drawn(found)) + "\n")


if __name__ == "__main__":
    main()
