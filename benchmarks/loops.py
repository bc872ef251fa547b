"""How fast the three loops are where collecting and learning cost the same, and how well their agents learn.

    python benchmarks/loops.py --rounds 5                        speed: sync, pipelined and free, in turn
    python benchmarks/loops.py --learn CartPole-v1 --seeds 5     returns of held-out episodes after the same steps

A world computes (or sleeps) for as long as it takes for collecting to cost as much wall time as learning in `sync`; that is
tried first. Each loop has a process of its own, and the loops take turns. Figures are medians over rounds of the quotient of
times of the same round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import zlib
from typing import Any

import gymnasium
import machine
import numpy as np

import stretto

LOOPS = "sync", "pipelined", "free"
ENVS, ROWS, INTERVALS = 8, 64, 24

PPO = {"rows": ROWS, "batch": 64, "epochs": 10, "network": {"widths": [128, 128]}}
DQN = {
    "rows": 8,
    "batch": 128,
    "updates": 32,
    "buffer": 10_000,
    "learning_starts": 100,
    "network": {"widths": [128, 128]},
}
LEARNERS = {"ppo": PPO, "dqn": DQN}


class Costly(gymnasium.Env[Any, Any]):
    """Goes from left to right, and computes checksums, or sleeps, for a while in each step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (16,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, checksums: int = 0, sleep_seconds: float = 0.0) -> None:
        self._checksums, self._sleep, self._data = checksums, sleep_seconds, bytes(4096)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place, self._steps = self.np_random.uniform(-1, 1, 16).astype(np.float32), 0
        return self._place.copy(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._place = np.roll(self._place, 1 + int(action))
        for _ in range(self._checksums):
            zlib.crc32(self._data)
        if self._sleep:
            time.sleep(self._sleep)
        return self._place.copy(), float(self._place[0]), False, self._steps == 200, {}


def run(loop: str, learner: str, cost: dict[str, Any], workers: int) -> dict[str, Any]:
    """Do a run; return its steps a second after the first intervals, and what the overlap was."""
    settings = LEARNERS[learner]
    intervals = INTERVALS * ROWS // settings["rows"]  # type: ignore[operator]
    config = {"preset": None, learner: settings, "loop": loop}
    steps = intervals * ENVS * settings["rows"]  # type: ignore[operator]
    marks: list[tuple[float, int]] = []
    phases: list[dict[str, float]] = []

    def mark(interval: Any) -> None:
        marks.append((time.perf_counter(), interval.steps))
        phases.append(interval.seconds)

    backend: dict[str, Any] = {"backend": "process", "workers": workers} if workers > 1 else {"backend": "serial"}
    report = stretto.train(
        Costly, learner, steps=steps, num_envs=ENVS, env_kwargs=cost, config=config, on_interval=mark, **backend
    )
    skip = len(marks) // 5  # processes start in the first ones
    (began, first), (ended, last) = marks[skip], marks[-1]
    learning = [one.get("learning", 0.0) for one in phases[skip + 1 :]]
    overlap = report.history[-1]["timing"].get("overlap", {})
    return {"speed": (last - first) / (ended - began), "learning": sum(learning) / (ended - began), **overlap}


def apart(**what: Any) -> dict[str, Any]:
    """Do a run in a new process."""
    command = [sys.executable, __file__, "--one", json.dumps(what)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def balanced(learner: str, kind: str, workers: int) -> dict[str, Any]:
    """Return what a step must cost for collecting to take as long as learning in `sync`."""
    name, low, high = {"computes": ("checksums", 1, 2_000), "sleeps": ("sleep_seconds", 1e-5, 2e-2)}[kind]
    value = (low * high) ** 0.5
    for _ in range(6):
        cost = {name: type(low)(value)}
        share = apart(loop="sync", learner=learner, cost=cost, workers=workers)["learning"]
        if 0.46 < share < 0.54:
            break
        value = min(max(value * share / (1 - share), low), high)
    return cost


def speed(rounds: int, learner: str, kind: str, workers: int) -> None:
    """Print how fast each loop is, beside `sync`."""
    cost = balanced(learner, kind, workers)
    found: dict[str, list[dict[str, Any]]] = {loop: [] for loop in LOOPS}
    for _ in range(rounds):
        for loop in LOOPS:
            found[loop].append(apart(loop=loop, learner=learner, cost=cost, workers=workers))
    for loop, runs in found.items():
        ratios = [one["speed"] / other["speed"] for one, other in zip(runs, found["sync"], strict=True)]
        middle = {name: statistics.median(one[name] for one in runs) for name in runs[0]}
        learns = f"{middle['learning']:.0%}" if loop == "sync" else ""
        told = [f"{middle[name]:.2f}" if name in middle else "" for name in ("mean_lag", "most_lag", "replay_ratio")]
        waits = [f"{middle[name]:.0%}" if name in middle else "" for name in ("collecting_waits", "learning_waits")]
        figures = [
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{middle['speed']:,.0f}",
        ]
        print(
            f"| {learner}, {kind}, {workers} | {loop} | {' | '.join([*figures, learns, *told, *waits])} |", flush=True
        )


def learn(world: str, steps: int | None, seeds: int, loops: list[str]) -> None:
    """Print the returns of held-out episodes, loop by loop, with 95% intervals of the mean over seeds."""
    print(f"| {world} | seeds | mean return | 95% interval | each |\n|---|---:|---:|---|---|")
    for loop in loops:
        found = []
        for seed in range(seeds):
            config = {"loop": loop, "evaluation": {"episodes": 20}}
            report = stretto.train(
                world, "ppo", steps=steps, seed=seed, config=config, eval_every=1 << 40, backend="serial"
            )
            found.append(float(report.evaluations[-1]["return"]))
        half = 1.96 * statistics.stdev(found) / seeds**0.5 if seeds > 1 else 0.0
        mean = statistics.fmean(found)
        each = ", ".join(f"{one:.4g}" for one in found)
        print(f"| {loop} | {seeds} | {mean:.4g} | {mean - half:.4g} to {mean + half:.4g} | {each} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--learners", nargs="*", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--kinds", nargs="*", choices=("computes", "sleeps"), default=["computes", "sleeps"])
    parser.add_argument("--workers", type=int, default=2, help="processes that step worlds, the caller being one")
    parser.add_argument("--learn", metavar="WORLD")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--loops", nargs="*", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(**json.loads(options.one))))
        return
    print(machine.describe("torch", "numpy"), file=sys.stderr)
    if options.learn:
        learn(options.learn, options.steps, options.seeds, options.loops)
        return
    heads = (
        "times sync (range)",
        "steps/s",
        "sync learns",
        "mean lag",
        "most lag",
        "replay ratio",
        "collecting waits",
        "learning waits",
    )
    print(f"| learner, world, workers | loop | {' | '.join(heads)} |\n|---|---|{'---:|' * len(heads)}")
    for learner in options.learners:
        for kind in options.kinds:
            speed(options.rounds, learner, kind, options.workers)


if __name__ == "__main__":
    main()
