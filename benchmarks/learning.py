"""What PPO, DQN and SAC learn beside Stable-Baselines3's: returns, steps to the threshold, speed, and time to the threshold.

    python benchmarks/learning.py [--learner ppo dqn sac] [--worlds CartPole-v1 ...] [--seeds 5] [--who stretto ...]
        [--out FOLDER] [--clock wall] [--set KEY=VALUE] [--speed-only]

Stretto has its presets. "SB3, equal" has the same settings and budget of steps, "SB3, zoo" those that rl-baselines3-zoo found
for it. They take turns, seed by seed. Each run is a process, and leaves a file in FOLDER: begin again, and those that are
there are not run again, unless their settings were others. Every so many steps the policy plays 20 held-out episodes,
always with its best actions, until it reaches the threshold; the time for that does not count. At the end, its last weights
play 100 others. `--clock cpu` counts time on a core, for a machine that others use meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from learning_runs import PROBLEMS, ZOO, Problem, sb3_equal, sb3_run, stretto_run
from machine import describe, load_warning

from stretto.evaluation.statistics.bootstrap import Bootstrap
from stretto.seeding import SeedTree
from stretto.training.config import config_of, plain, settings_of

WHO = {"stretto": "Stretto", "equal": "SB3, equal", "zoo": "SB3, zoo"}

EQUAL_SPEED = {
    "ppo": {
        "batch 64, 10 epochs": {"steps": 20_000, "num_envs": 64, "ppo": {"rows": 32, "batch": 64, "epochs": 10}},
        "batch 256, 4 epochs": {"steps": 60_000, "num_envs": 64, "ppo": {"rows": 32, "batch": 256, "epochs": 4}},
    },
    "dqn": {
        "batch 64, 128 updates in 256 steps": {
            "steps": 6_000,
            "num_envs": 8,
            "dqn": {
                "rows": 32, "updates": 128, "batch": 64, "double": False, "target_interval": 128,
                "network": {"widths": [256, 256]},
            },
        },
    },
}  # fmt: skip
LEAST_SPEED = {"batch 64, 10 epochs": 1.8, "batch 256, 4 epochs": 1.5}
MOST_TIME = 1 / 3  # of SB3's, to the threshold in CartPole


@dataclass(frozen=True)
class Cell:
    """One run: who learns what, with which settings. JSON's values alone."""

    learner: str
    problem: str
    who: str
    seed: int
    settings: dict[str, Any]
    looks: bool = True

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.learner} {self.problem} {self.who} {self.seed}.json".replace(" ", "_")

    def run(self) -> dict[str, Any]:
        """Learn, in this process."""
        problem = PROBLEMS[self.problem]
        if self.learner == "sac":  # which needs a tenth of the steps
            problem = replace(problem, look_every=problem.look_every // 10)
        if self.who == "stretto":
            config = config_of(f"gym:{problem.world}", {"preset": None}, self.settings)
            return stretto_run(problem, config, self.seed, looks=self.looks)
        return sb3_run(problem, self.learner, self.settings, self.seed, looks=self.looks)

    def run_apart(self) -> dict[str, Any]:
        """Learn in a process of its own."""
        command = [sys.executable, __file__, "--cell", json.dumps(asdict(self))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{self.name}: {done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def found(self, folder: Path | None) -> dict[str, Any]:
        """Return what came of it, from its file if there is one; else learn."""
        path = None if folder is None else folder / self.name
        if path is not None and path.exists():
            kept: dict[str, Any] = json.loads(path.read_text())
            if kept["settings"] == self.settings:
                return kept
        found = {"settings": self.settings, **self.run_apart()}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found))
        return found


def settings_for(who: str, learner: str, problem: Problem) -> dict[str, Any] | None:
    """Return the settings of a contestant; `None` if it does not take part."""
    config = problem.config(learner)
    if who == "stretto":
        return plain(config) | {"preset": None}
    if problem.hidden:
        return None  # it has no memory
    return sb3_equal(config) if who == "equal" else ZOO.get((learner, problem.world))


# ---- tables ----


def spread(numbers: list[float], form: str = ",.0f") -> str:
    """Return the median and the quartiles."""
    if len(numbers) < 2:
        return format(numbers[0], form) if numbers else "-"
    low, _, high = quantiles(numbers, n=4)
    return f"{median(numbers):{form}} [{low:{form}}, {high:{form}}]"


def mean_with_interval(numbers: list[float]) -> str:
    """Return the mean over seeds, with its 95% interval."""
    bootstrap = Bootstrap(SeedTree(0).child("seeds"))
    bootstrap.add_mean(0, {"seeds": numbers})
    interval = bootstrap.intervals().get(0)
    return f"{mean(numbers):.0f}" + (f" [{interval[0]:.0f}, {interval[1]:.0f}]" if interval else "")


def row_of(runs: list[dict[str, Any]], problem: Problem, clock: str) -> str:
    """Return the cells of a contestant's row."""
    finals = [mean(run["final"]) for run in runs]
    there = sum(final >= problem.threshold for final in finals)
    reached = [run["reached"] for run in runs if run["reached"]]
    cells = (
        mean_with_interval(finals),
        ", ".join(f"{final:.0f}" for final in finals),
        f"{there} of {len(runs)}",
        f"{spread([float(one['steps']) for one in reached])}",
        f"{spread([one[clock] for one in reached], '.1f')}",
        f"{median(run['steps'] / run[clock] for run in runs):,.0f}",
    )
    return " | ".join(cells)


def compare_learning(
    learner: str, name: str, seeds: int, contestants: list[str], folder: Path | None, clock: str
) -> list[str]:
    """Print what all learn; return which bars were missed."""
    problem, found = PROBLEMS[name], {who: [] for who in contestants}  # type: dict[str, list[dict[str, Any]]]
    for seed in range(seeds):
        for who, runs in found.items():
            settings = settings_for(who, learner, problem)
            if settings is not None:
                runs.append(Cell(learner, name, who, seed, settings).found(folder))
    for who, runs in found.items():
        if runs:
            print(f"| {name} | {learner} | {WHO[who]} | {row_of(runs, problem, clock)} |", flush=True)
    return list(_missed(learner, name, found, clock))


def _missed(learner: str, name: str, found: dict[str, list[dict[str, Any]]], clock: str) -> Iterator[str]:
    threshold = PROBLEMS[name].threshold
    below = [seed for seed, run in enumerate(found.get("stretto", ())) if mean(run["final"]) < threshold]
    if below:
        yield f"{name}, {learner}: below {threshold:.0f} with the seeds {', '.join(map(str, below))}"
    if name != "CartPole-v1":
        return
    times = {who: [run["reached"][clock] for run in runs if run["reached"]] for who, runs in found.items()}
    ours, theirs = times.get("stretto"), times.get("zoo")
    if ours and theirs and median(ours) > MOST_TIME * median(theirs):
        yield f"{name}, {learner}: {median(ours) / median(theirs):.2f} of SB3's time to the threshold, the bar is a third"


def compare_speed(learner: str, seeds: int, clock: str) -> list[str]:
    """Print steps a second in CartPole, with equal settings; return which bars were missed."""
    print(f"\n| {learner}, equal settings | Stretto, steps/s | SB3, steps/s | ratio |\n|---|---:|---:|---:|")
    missed = []
    for name, settings in EQUAL_SPEED[learner].items():
        rates: dict[str, list[float]] = {"stretto": [], "equal": []}
        problem = replace(PROBLEMS["CartPole-v1"], settings={"preset": None, **settings})
        for seed in range(seeds):
            for who in list(rates)[:: 1 if seed % 2 else -1]:
                chosen = settings_for(who, learner, problem)
                assert chosen is not None
                run = Cell(learner, "CartPole-v1", who, seed, chosen, looks=False).run_apart()
                rates[who].append(run["steps"] / run[clock])
        ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
        print(
            f"| {name} | {spread(rates['stretto'])} | {spread(rates['equal'])} | {spread(ratios, '.2f')} |", flush=True
        )
        if median(ratios) < LEAST_SPEED.get(name, 0):
            missed.append(f"{name}: {median(ratios):.2f} times SB3's speed, the bar is {LEAST_SPEED[name]}")
    return missed


def main() -> None:
    """Run the comparison, and say which bars were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learner", nargs="+", default=["ppo"], choices=["ppo", "dqn", "sac"])
    parser.add_argument("--worlds", nargs="+", default=["CartPole-v1"], choices=list(PROBLEMS), metavar="WORLD")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--who", nargs="+", default=list(WHO), choices=list(WHO))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="other settings than the preset's")
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        print(json.dumps(Cell(**json.loads(given.cell)).run()))
        return
    print(describe("stretto", "stable_baselines3", "torch", "gymnasium"))
    print(load_warning() or "")
    missed = []
    if given.speed_only:
        for learner in (one for one in given.learner if one in EQUAL_SPEED):
            missed += compare_speed(learner, given.seeds, given.clock)
    else:
        for name in given.worlds:
            PROBLEMS[name] = replace(PROBLEMS[name], settings={**PROBLEMS[name].settings, **settings_of(given.set)})
        seconds = "seconds" if given.clock == "wall" else "CPU seconds"
        print(
            "| world | learner | who | final return, mean over seeds [95%] | by seed | seeds at the threshold | "
            f"steps to the threshold | {seconds} to it | steps a {seconds.removesuffix('s')} |\n"
            "|---|---|---|---:|---|---:|---:|---:|---:|"
        )
        for name in given.worlds:
            for learner in given.learner:
                missed += compare_learning(learner, name, given.seeds, given.who, given.out, given.clock)
    print("\n" + ("\n".join(missed) or "Every bar is met."))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
