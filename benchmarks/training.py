"""Whole epochs of independent PPO, collecting and learning: Stretto beside a plain loop, and beside other libraries.

    python benchmarks/training.py [--world foundry_1] [--rounds 5] [--agents 3,8] [--rllib PYTHON] [--tianshou PYTHON]

In foundry_1 an agent sees 854 numbers, in simple_spread 6 for each agent; each has an actor and a critic of two layers of 64.
All have the same environments, rows, batches and epochs. The plain loop is in plain_training.py. PYTHON is that of an
environment in which the peer is installed, with the same version of torch.

Everybody runs in a process of its own, in turn, round by round, as the beginning of a run of half a million steps. The first
interval does not count. The bars are on environment steps a second of wall time, and mean something on idle cores alone; the
plain loop and the peers count with one or two threads a computation, whichever is faster. Steps for each second that a core
computed are beside it, over all processes of a run and for the caller's alone: the caller is the busiest of ours, so where
other programs take cores away, the latter is nearest to what idle cores would show. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

SETS = ("auto", "stacked", "sequential", "threads", "processes")
OURS = SETS[0]
LEAST = {("plain", 3): 2.0, ("plain", 8): 4.0, ("rllib", 3): 5.0, ("rllib", 8): 5.0}
LEAST |= {("tianshou", 3): 5.0, ("tianshou", 8): 5.0}
"""How many times faster than each of these we must be, by the number of agents."""

CLOCKS = "wall", "cpu", "caller"
NEVER_BELOW = 0.95
PLANNED_STEPS = 500_000


@dataclass(frozen=True)
class Settings:
    """What all have in common."""

    world: str = "foundry_1"
    threads: int = 1
    envs: int = 16
    rows: int = 32
    batch: int = 64
    epochs: int = 10
    hidden: int = 64
    learning_rate: float = 3e-4
    entropy: float = 0.01
    seed: int = 0
    intervals: int = 5


class Meter:
    """Takes the time of all intervals but the first, in which much is loaded and chosen."""

    def __init__(self) -> None:
        self._began: tuple[int, float, float, float] | None = None
        self.found: dict[str, float] = {}

    def __call__(self, steps: int) -> None:
        now = steps, cpu_seconds(), time.perf_counter(), time.process_time()
        if self._began is None:
            self._began = now
        else:
            names = ("steps", "cpu", "wall", "caller")
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


class _Enough(Exception):
    """Ends a run that was planned for longer."""


def stretto_run(learner_set: str, agents: int, settings: Settings, meter: Meter) -> None:
    import stretto

    def seen(interval: Any) -> None:
        meter(interval.steps)
        if interval.number == settings.intervals:
            raise _Enough

    foundry = settings.world == "foundry_1"
    made: dict[str, Any] = {"cogs": agents} if foundry else {"env_kwargs": {"N": agents, "max_cycles": 25}}
    ppo = {name: getattr(settings, name) for name in ("rows", "batch", "epochs", "learning_rate", "entropy")}
    with suppress(_Enough):
        stretto.train(
            "foundry_1" if foundry else "pz:mpe2.simple_spread_v3",
            "ppo",
            num_envs=settings.envs,
            steps=PLANNED_STEPS,
            seed=settings.seed,
            config={"preset": None, "learner_set": learner_set, "ppo": ppo},
            on_interval=seen,
            **made,
        )


@dataclass(frozen=True)
class Contestant:
    """One that is run, by the Python that has it, with so many threads a computation."""

    who: str
    python: str
    threads: int = 1

    @property
    def name(self) -> str:
        """What its rows are called."""
        return self.who if self.threads == 1 else f"{self.who}, {self.threads} threads"


def run(who: str, agents: int, settings: Settings) -> dict[str, float]:
    """Run one of them here; return what it took."""
    meter = Meter()
    if who in SETS:
        stretto_run(who, agents, settings, meter)
    elif who == "plain":
        from plain_training import plain

        plain(agents, settings, meter, settings.threads)
    else:
        import training_peers

        getattr(training_peers, who)(agents, settings, meter)
    return meter.found


def run_apart(python: str, who: str, agents: int, settings: Settings) -> dict[str, float]:
    """Run one of them in a process of its own, by the Python that has it."""
    task = json.dumps([who, agents, asdict(settings)])
    source = str(Path(__file__).parents[1] / "src")
    with tempfile.TemporaryDirectory() as home:  # some peers write into it
        environment = {
            **os.environ,
            "HOME": home,
            "PYTHONPATH": source,
            "OMP_NUM_THREADS": str(settings.threads),
            "RAY_DISABLE_IMPORT_WARNING": "1",
        }
        command = [python, __file__, "--task", task]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{who} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(agents: int, contestants: Sequence[Contestant], settings: Settings, rounds: int) -> list[str]:
    """Print a row for each; return which bars were missed."""
    found: dict[str, list[dict[str, float]]] = {one.name: [] for one in contestants}
    for number in range(rounds):
        for one in list(contestants)[:: 1 if number % 2 else -1]:
            took = run_apart(one.python, one.who, agents, replace(settings, threads=one.threads))
            found[one.name].append(took)
            print(f"round {number}, {agents} agents, {one.name}: {took}", file=sys.stderr, flush=True)
    ratios = {}
    for name, runs in found.items():
        ratios[name] = {
            clock: [
                theirs[clock] / theirs["steps"] * ours["steps"] / ours[clock]
                for ours, theirs in zip(found[OURS], runs, strict=True)
            ]
            for clock in CLOCKS
        }
        rates = {clock: median(one["steps"] / one[clock] for one in runs) for clock in CLOCKS}
        shown = " | ".join(f"{rates[clock]:,.0f} | {spread(ratios[name][clock])}" for clock in CLOCKS)
        print(f"| {agents} | {name} | {shown} |", flush=True)
    missed = []
    for who in {one.who for one in contestants}:
        ratio = min(median(ratios[one.name]["wall"]) for one in contestants if one.who == who)
        least = LEAST.get((who, agents), NEVER_BELOW if who == "plain" else None)
        if least is not None and ratio < least:
            missed.append(f"{agents} agents: {ratio:.2f} times {who}, the bar is {least:g}")
    return missed


def spread(numbers: list[float]) -> str:
    """Return the median and the quartiles."""
    if len(numbers) < 2:
        return f"{numbers[0]:.2f}"
    low, middle, high = quantiles(numbers, n=4, method="inclusive")
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Run everybody, print the table, and say which bars were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--agents", default="3,8", help="how many agents, separated by commas")
    parser.add_argument("--batch", type=int, default=Settings.batch)
    parser.add_argument("--epochs", type=int, default=Settings.epochs)
    parser.add_argument("--world", default="foundry_1", choices=("foundry_1", "simple_spread"))
    parser.add_argument("--sets", default=",".join(SETS), help="which learner sets; the first is always auto")
    parser.add_argument("--threads", default="1,2", help="with how many threads a computation the others are run")
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
    contestants = [Contestant(name, sys.executable) for name in dict.fromkeys([OURS, *given.sets.split(",")])]
    others = {"plain": sys.executable, "rllib": given.rllib, "tianshou": given.tianshou}
    threads = list(map(int, given.threads.split(",")))
    contestants += [Contestant(who, python, count) for who, python in others.items() if python for count in threads]
    settings = Settings(given.world, batch=given.batch, epochs=given.epochs)
    print(
        f"\n{settings.world}, {settings.envs} environments, {settings.rows} rows, batches of {settings.batch}, ", end=""
    )
    print(f"{settings.epochs} epochs\n")
    columns = "steps a second", "steps a CPU second", "steps a CPU second of the caller"
    print("| agents | | " + " | ".join(f"{column} | Stretto is faster by" for column in columns) + " |")
    print("|---:|---" + "|---:" * 6 + "|")
    missed = []
    for agents in map(int, given.agents.split(",")):
        missed += compare(agents, contestants, settings, given.rounds)
    print("\n" + ("\n".join(missed) or "Every bar is met."))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
