"""How fast vector environments are beside other busy programs: waiting by looking, by sleeping, and by what pays.

    python benchmarks/contention.py --busy 0 1 2 4 --rounds 7

Each way has a process of its own, which is idle while another has its turn. Figures are medians of ratios to the plain
loop of the same round, with intervals that hold 95 of 100 resampled sets of rounds. The first rounds beside a number of
programs do not count: `auto` takes up to a second of stepping to notice them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import machine
import numpy as np

import stretto

STEPS = 50
LEAST_OF_BEST, LEAST_OF_PLAIN = 0.92, 0.95
BEST_OF = ("serial", "always looking", "always sleeping")
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain loop": ("adaptive", {}),
    "serial": ("adaptive", {"backend": "serial"}),
    "always looking": ("spin", {"backend": "process", "workers": 2}),
    "always sleeping": ("sleep", {"backend": "process", "workers": 2}),
    "what pays": ("adaptive", {"backend": "process", "workers": 2}),
    "auto": ("adaptive", {}),
}
"""For each way, how its processes wait, and the options of `make_vec`."""


def steps_of(way: str, world: str, count: int) -> tuple[Callable[[], object], Callable[[], str]]:
    """Return what does `STEPS` steps of all environments, and what says how it is done."""
    actions = [gymnasium.make(world).action_space.sample() for _ in range(STEPS)]
    if way != "plain loop":
        vector = stretto.make_vec(world, count, copy=False, **WAYS[way][1])
        vector.reset(seed=0)
        batches = [np.full(count, action) for action in actions]
        return lambda: [vector.step(batch) for batch in batches], lambda: vector.choice
    envs = [gymnasium.make(world) for _ in range(count)]
    for number, env in enumerate(envs):
        env.reset(seed=number)

    def loop() -> None:
        for action in actions:
            for env in envs:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()

    return loop, lambda: way


def serve(way: str, world: str, count: int) -> None:
    """Do steps for as many seconds as each line of the input says, and print how many there were in one, and how."""
    some, how = steps_of(way, world, count)
    for _ in range(3):
        some()
    print("ready", flush=True)
    for line in sys.stdin:
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < float(line):
            some()
            done += STEPS
        print(done / (time.perf_counter() - began), how(), flush=True)


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Let so many programs compute, each as much as it can."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def start(way: str, world: str, count: int) -> subprocess.Popen[str]:
    """Start the process of a way, and wait until it is ready."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", way, "--world", world, "--count", str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "STRETTO_WAITING": WAYS[way][0]},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def turn(process: subprocess.Popen[str], seconds: float) -> tuple[float, str]:
    """Let a way do steps for a while; return how many it does in a second, and what it says of itself."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    rate, _, how = process.stdout.readline().strip().partition(" ")
    return float(rate), how


def interval(rounds: list[dict[str, float]], figure: Callable[[list[dict[str, float]]], float]) -> str:
    """Return a figure of the rounds, and between what it is in 95 of 100 sets that are drawn from them again."""
    draw = np.random.default_rng(0)
    figures = [figure([rounds[i] for i in draw.integers(len(rounds), size=len(rounds))]) for _ in range(1000)]
    low, high = np.quantile(figures, [0.025, 0.975])
    return f"{figure(rounds):.2f} [{low:.2f}, {high:.2f}]"


def of_plain(way: str) -> Callable[[list[dict[str, float]]], float]:
    """Return what compares a way with the plain loop of the same round."""
    return lambda rounds: statistics.median(one[way] / one["plain loop"] for one in rounds)


def of_best(rounds: list[dict[str, float]]) -> float:
    """Compare `auto` with whichever way is the best here."""
    return of_plain("auto")(rounds) / max(of_plain(way)(rounds) for way in BEST_OF)


def show(busy: int, rounds: list[dict[str, float]], told: str) -> None:
    """Print what was measured beside so many programs."""
    print(f"{busy} busy: plain loop {statistics.median(one['plain loop'] for one in rounds):,.0f} steps/s of all")
    for way in list(WAYS)[1:]:
        print(f"  {way:16} {interval(rounds, of_plain(way))}")
    for name, figure, least in (("best", of_best, LEAST_OF_BEST), ("plain loop", of_plain("auto"), LEAST_OF_PLAIN)):
        verdict = "met" if figure(rounds) >= least else "MISSED"
        print(f"  {verdict:6} auto has {interval(rounds, figure)} of the {name}, bar {least}")
    moved = told.partition("; moved ")[2]
    print(f"  auto {'moved ' + moved if moved else 'has not moved'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2, 4], help="how many other programs compute")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--first", type=int, default=3, help="rounds before those that count")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each turn is")
    parser.add_argument("--world", default="CartPole-v1", help="one with discrete actions")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.world, given.count)
        return
    print(machine.describe("stretto", "gymnasium", "numpy"))
    processes = {way: start(way, given.world, given.count) for way in WAYS}
    print(f"{given.world} x {given.count}, times the plain loop beside the same programs: median [interval]")
    for busy in given.busy:
        with busy_programs(busy):
            turns = [
                {way: turn(one, given.seconds) for way, one in processes.items()}
                for _ in range(given.first + given.rounds)
            ]
        rounds = [{way: rate for way, (rate, _) in one.items()} for one in turns[given.first :]]
        show(busy, rounds, turns[-1]["auto"][1])
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
