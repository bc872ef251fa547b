"""How fast the three loops are where collecting and learning cost the same, and how well their agents learn.

    python benchmarks/loops.py --rounds 5                            speed: sync, pipelined and free, in turn
    python benchmarks/loops.py --learn CartPole-v1 --seeds 0 1 2     returns of held-out episodes after the same steps

A world computes (or sleeps) for as long as it takes for collecting to cost as much wall time as learning in `sync`; that is
tried first. `--kinds CartPole-v1 foundry_1` takes the speed in known worlds, with their presets and all else as users have
it. Each loop has a process of its own, and the loops take turns. Figures are medians over rounds of the quotient of times of
the same round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import gymnasium
import machine
import numpy as np

import stretto
from stretto.training.phases import AWAITING
from stretto.training.presets import PRESETS

LOOPS = "sync", "pipelined", "free"
ENVS, POINTS = 8, 10
GUESS = {("ppo", "computes"): 44.0, ("dqn", "computes"): 1_250.0}
"""Costs of a step that are tried first: those that were found on two cores of an AMD EPYC."""

KNOWN = {"CartPole-v1": 60_000, "foundry_1": 40_000}
"""Worlds with presets, and for how many steps their speed is taken."""

STUDENT = 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26
"""The 97.5% quantiles of Student's t with 1 to 9 degrees of freedom."""

PPO = {"rows": 64, "batch": 64, "epochs": 10, "network": {"widths": [128, 128]}}
DQN = {
    "rows": 8,
    "batch": 128,
    "updates": 32,
    "buffer": 10_000,
    "learning_starts": 100,
    "network": {"widths": [128, 128]},
}
LEARNERS: dict[str, tuple[dict[str, Any], int]] = {"ppo": (PPO, 80), "dqn": (DQN, 120)}
"""Settings, and how many intervals a run has."""


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
    """Do a run with a world of a cost, or with a known one; return what `timed` does."""
    if "world" in cost:  # as users have it
        given: dict[str, Any] = {"steps": cost["steps"], "config": {"loop": loop}}
        return timed(cost["world"], learner, **given)
    settings, intervals = LEARNERS[learner]
    config = {"preset": None, learner: settings, "loop": loop}
    steps = intervals * ENVS * settings["rows"]
    backend: dict[str, Any] = {"backend": "process", "workers": workers} if workers > 1 else {"backend": "serial"}
    return timed(Costly, learner, steps=steps, num_envs=ENVS, env_kwargs=cost, config=config, **backend)


def timed(world: Any, learner: str, **options: Any) -> dict[str, Any]:
    """Do a run; return its steps a second, and how collecting and learning went together.

    The first fifth does not count, because processes start in it, nor the last interval, in which learners catch up.
    """
    seen: list[tuple[float, Any]] = []
    report = stretto.train(
        world, learner, on_interval=lambda interval: seen.append((time.perf_counter(), interval)), **options
    )
    (began, first), *counted = seen[len(seen) // 5 : -1]
    ended, last = counted[-1]
    found = {"speed": (last.steps - first.steps) / (ended - began)}
    intervals = [interval for _, interval in counted]
    if first.overlap is None:
        return {**found, "learning": sum(one.seconds["learning"] for one in intervals) / (ended - began)}
    return {
        **found,
        "mean_lag": statistics.fmean(one.overlap.lag for one in intervals),
        "most_lag": max(one.overlap.lag for one in intervals),
        "replay_ratio": report.history[-1]["timing"]["overlap"]["replay_ratio"],
        "collecting_waits": sum(one.seconds[AWAITING] for one in intervals) / (ended - began),
        "learning_waits": 1 - sum(one.overlap.learning_seconds for one in intervals) / (ended - began),
    }


def apart(**what: Any) -> dict[str, Any]:
    """Do a run in a new process."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", json.dumps(what)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def balanced(learner: str, kind: str, workers: int) -> dict[str, Any]:
    """Return what a step must cost for collecting to take as long as learning in `sync`."""
    name, low, high = {"computes": ("checksums", 1, 2_000), "sleeps": ("sleep_seconds", 1e-5, 2e-2)}[kind]
    value = GUESS.get((learner, kind), (low * high) ** 0.5)
    for _ in range(6):
        cost = {name: type(low)(value)}
        share = apart(loop="sync", learner=learner, cost=cost, workers=workers)["learning"]
        if 0.46 < share < 0.54:
            break
        value = min(max(value * share / (1 - share), low), high)
    return cost


def speed(rounds: int, learner: str, kind: str, workers: int) -> None:
    """Print how fast each loop is, beside `sync`."""
    cost = {"world": kind, "steps": KNOWN[kind]} if kind in KNOWN else balanced(learner, kind, workers)
    found: dict[str, list[dict[str, Any]]] = {loop: [] for loop in LOOPS}
    for _ in range(rounds):
        for loop in LOOPS:
            found[loop].append(apart(loop=loop, learner=learner, cost=cost, workers=workers))
    for loop, runs in found.items():
        ratios = [one["speed"] / other["speed"] for one, other in zip(runs, found["sync"], strict=True)]
        middle = {name: statistics.median(one[name] for one in runs) for name in runs[0]}
        learns = f"{middle['learning']:.0%}" if "learning" in middle else ""
        told = [f"{middle[name]:.2f}" if name in middle else "" for name in ("mean_lag", "most_lag", "replay_ratio")]
        waits = [f"{middle[name]:.0%}" if name in middle else "" for name in ("collecting_waits", "learning_waits")]
        figures = [
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{middle['speed']:,.0f}",
        ]
        print(
            f"| {learner}, {kind}, {workers} | {loop} | {' | '.join([*figures, learns, *told, *waits])} |", flush=True
        )


def learned(world: str, loop: str, seed: int, steps: int | None, **options: Any) -> dict[str, Any]:
    """Do a run; return the returns of held-out episodes after every tenth of it."""
    count = steps or dict(PRESETS[next(name for name in PRESETS if world.startswith(name))].learners["ppo"])["steps"]
    config = {"loop": loop, "evaluation": {"episodes": 20}}
    report = stretto.train(
        world,
        "ppo",
        steps=count,
        seed=seed,
        config=config,
        eval_every=-(-count // POINTS),
        backend="serial",
        **options,
    )
    curve = [float(one["return"]) for one in report.evaluations]
    overlap = report.history[-1]["timing"].get("overlap", {})
    return {"world": world, "loop": loop, "seed": seed, "steps": count, "curve": curve, "lag": overlap.get("mean_lag")}


def learn(world: str, steps: int | None, seeds: list[int], loops: list[str], kept: Path, **options: Any) -> None:
    """Print the returns of held-out episodes, loop by loop, with 95% intervals of the mean over seeds.

    Each run is kept in a file, and is not done again.
    """
    for seed in seeds:
        for loop in loops:
            if not any((one["loop"], one["seed"]) == (loop, seed) for one in _runs(kept, world, steps)):
                found = apart(learned={"world": world, "loop": loop, "seed": seed, "steps": steps, **options})
                with kept.open("a") as file:
                    file.write(json.dumps(found) + "\n")
    heads = "last return, mean (95% interval)", "each", "mean of the curve (95% interval)", "lag"
    print(f"| {world} | seeds | {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) + 1)}")
    for loop in loops:
        runs = sorted(
            (one for one in _runs(kept, world, steps) if one["loop"] == loop and one["seed"] in seeds),
            key=lambda one: one["seed"],
        )
        last = [one["curve"][-1] for one in runs]
        told = [_interval(last), ", ".join(f"{one:.4g}" for one in last)]
        told.append(_interval([statistics.fmean(one["curve"]) for one in runs]))
        told.append("" if runs[0]["lag"] is None else f"{statistics.fmean(one['lag'] for one in runs):.2f}")
        print(f"| {loop} | {len(runs)} | {' | '.join(told)} |", flush=True)


def _runs(kept: Path, world: str, steps: int | None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    return [one for one in found if one["world"] == world and steps in (None, one["steps"])]


def _interval(values: list[float]) -> str:
    """Return the mean of some values, and its 95% interval by Student's t."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.4g}"
    half = STUDENT[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.4g} ({mean - half:.4g} to {mean + half:.4g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--learners", nargs="*", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--kinds", nargs="*", choices=("computes", "sleeps", *KNOWN), default=["computes", "sleeps"])
    parser.add_argument("--workers", type=int, default=2, help="processes that step worlds, the caller being one")
    parser.add_argument("--learn", metavar="WORLD")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--cogs", type=int, help="how many agents learn in a world of Foundry")
    parser.add_argument("--variants", nargs="*", default=[])
    parser.add_argument("--kept", type=Path, default=Path("build/loops.jsonl"), help="where runs that learned are kept")
    parser.add_argument("--loops", nargs="*", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        asked = json.loads(options.one)
        print(json.dumps(learned(**asked["learned"]) if "learned" in asked else run(**asked)))
        return
    print(machine.describe("torch", "numpy"), file=sys.stderr)
    if options.learn:
        game = {"cogs": options.cogs, "variants": options.variants} if options.cogs else {}
        learn(options.learn, options.steps, options.seeds, options.loops, options.kept, **game)
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
