"""Whole epochs of independent PPO, collecting and learning: Stretto beside a plain loop, and beside other libraries.

    python benchmarks/training.py [--rounds 5] [--agents 3,8] [--rllib PYTHON] [--tianshou PYTHON]

The world is foundry_1; a cog sees 854 numbers, and has an actor and a critic of two layers of 64. All have the same
environments, rows, batches and epochs. The plain loop is in plain_training.py. PYTHON is that of an environment in which
the peer is installed, with the same version of torch.

Everybody runs in a process of its own, in turn, round by round. The first interval does not count. The bars are on
environment steps for each second that a core computed, over all processes of a run: other programs on the machine, and how
many cores it has, do not count in it. Wall time is beside it. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil

SETS = ("stacked", "sequential", "threads", "processes")
OURS = SETS[0]
LEAST = {("plain", 3): 2.0, ("plain", 8): 4.0, ("rllib", 3): 5.0, ("rllib", 8): 5.0}
LEAST |= {("tianshou", 3): 5.0, ("tianshou", 8): 5.0}
"""How many times faster than each of these we must be, by the number of agents."""


@dataclass(frozen=True)
class Settings:
    """What all have in common."""

    envs: int = 16
    rows: int = 32
    batch: int = 64
    epochs: int = 10
    hidden: int = 64
    learning_rate: float = 3e-4
    entropy: float = 0.01
    seed: int = 0
    intervals: int = 4


class Meter:
    """Takes the time of all intervals but the first, in which much is loaded and chosen."""

    def __init__(self) -> None:
        self._began: tuple[int, float, float] | None = None
        self.found: dict[str, float] = {}

    def __call__(self, steps: int) -> None:
        now = steps, cpu_seconds(), time.perf_counter()
        if self._began is None:
            self._began = now
        else:
            names = ("steps", "cpu", "wall")
            self.found = {name: float(a - b) for name, a, b in zip(names, now, self._began, strict=True)}


def cpu_seconds() -> float:
    """Return how long this process and all that it started have computed."""
    me = psutil.Process()
    total = sum(me.cpu_times()[:4])
    for child in me.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def stretto_run(learner_set: str, agents: int, settings: Settings, meter: Meter) -> None:
    import stretto

    ppo = {name: getattr(settings, name) for name in ("rows", "batch", "epochs", "learning_rate", "entropy")}
    stretto.train(
        "foundry_1",
        "ppo",
        cogs=agents,
        num_envs=settings.envs,
        steps=settings.envs * settings.rows * settings.intervals,
        seed=settings.seed,
        config={"preset": None, "learner_set": learner_set, "ppo": ppo},
        on_interval=lambda interval: meter(interval.steps),
    )


def run(who: str, agents: int, settings: Settings) -> dict[str, float]:
    """Run one of them here; return what it took."""
    meter = Meter()
    if who in SETS:
        stretto_run(who, agents, settings, meter)
    elif who == "plain":
        from plain_training import plain

        plain(agents, settings, meter)
    else:
        import training_peers

        getattr(training_peers, who)(agents, settings, meter)
    return meter.found


def run_apart(python: str, who: str, agents: int, settings: Settings) -> dict[str, float]:
    """Run one of them in a process of its own, by the Python that has it."""
    task = json.dumps([who, agents, asdict(settings)])
    source = str(Path(__file__).parents[1] / "src")
    with tempfile.TemporaryDirectory() as home:  # some peers write into it
        environment = {**os.environ, "HOME": home, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        command = [python, __file__, "--task", task]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{who} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(agents: int, pythons: Mapping[str, str], settings: Settings, rounds: int) -> list[str]:
    """Print a row for each; return which bars were missed."""
    found: dict[str, list[dict[str, float]]] = {who: [] for who in pythons}
    for number in range(rounds):
        for who in list(pythons)[:: 1 if number % 2 else -1]:
            found[who].append(run_apart(pythons[who], who, agents, settings))
            print(f"round {number}, {agents} agents, {who}: {found[who][-1]}", file=sys.stderr, flush=True)
    missed = []
    for who, runs in found.items():
        rates = {clock: [one["steps"] / one[clock] for one in runs] for clock in ("cpu", "wall")}
        ratios = [
            theirs["cpu"] / theirs["steps"] * ours["steps"] / ours["cpu"]
            for ours, theirs in zip(found[OURS], runs, strict=True)
        ]
        ratio, span = median(ratios), f"[{min(ratios):.2f}, {max(ratios):.2f}]"
        print(
            f"| {agents} | {who} | {median(rates['cpu']):,.0f} | {median(rates['wall']):,.0f} | {ratio:.2f} {span} |",
            flush=True,
        )
        least = LEAST.get((who, agents))
        if least is not None and ratio < least:
            missed.append(f"{agents} agents: {ratio:.2f} times {who}, the bar is {least:g}")
    return missed


def main() -> None:
    """Run everybody, print the table, and say which bars were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--agents", default="3,8", help="how many agents, separated by commas")
    parser.add_argument("--batch", type=int, default=Settings.batch)
    parser.add_argument("--epochs", type=int, default=Settings.epochs)
    parser.add_argument("--sets", default=",".join(SETS), help="which learner sets; the first is always stacked")
    parser.add_argument("--rllib", metavar="PYTHON", help="a Python that has RLlib")
    parser.add_argument("--tianshou", metavar="PYTHON", help="a Python that has tianshou")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        who, agents, settings = json.loads(given.task)
        print(json.dumps(run(who, agents, Settings(**settings))))
        return
    from machine import describe, load_warning

    print(describe("stretto", "torch", "numpy"))
    print(load_warning() or "")
    pythons = dict.fromkeys([OURS, *given.sets.split(","), "plain"], sys.executable)
    pythons |= {who: python for who in ("rllib", "tianshou") if (python := getattr(given, who))}
    settings = Settings(batch=given.batch, epochs=given.epochs)
    print(
        f"\n{settings.envs} environments, {settings.rows} rows, batches of {settings.batch}, {settings.epochs} epochs\n"
    )
    print(
        "| agents | | steps a CPU second | steps a second | Stretto, stacked, is faster by |\n|---:|---|---:|---:|---:|"
    )
    missed = []
    for agents in map(int, given.agents.split(",")):
        missed += compare(agents, pythons, settings, given.rounds)
    print("\n" + ("\n".join(missed) or "Every bar is met."))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
