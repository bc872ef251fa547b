"""From one environment to four thousand: CartPole in Stretto, and in Gymnasium's SyncVectorEnv and AsyncVectorEnv.

    python benchmarks/few_and_many.py --counts 1 2 4 8 16 64 512 1024 4096

Every contestant has a process of its own, which sleeps while others are measured; turns are interleaved. Figures are medians
of ratios to the plain loop of the same round. What is done in one process is also compared by its CPU time, which other
programs disturb less. Last, the first 18 steps of the most environments beside later ones: what is looked at only at first
costs most there.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import machine
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from worlds import make_cartpole

import stretto

PLAIN, OURS, SERIAL, SYNC, ASYNC = "plain loop", "stretto auto", "stretto serial", "gymnasium sync", "gymnasium async"
NAMES = (PLAIN, OURS, SERIAL, SYNC, ASYNC)
MOST_ASYNC = 64
"""AsyncVectorEnv has a process for each environment."""

FIRST, MOST_OF_LATER = 18, 1.5


def least(count: int) -> float:
    """Return what must be reached of the plain loop with so many environments."""
    return 0.6 if count < 4 else 0.75 if count < 16 else 0.95


class PlainLoop:
    """Steps environments one after the other."""

    def __init__(self, count: int) -> None:
        self.envs = [make_cartpole() for _ in range(count)]

    def reset(self, seed: int) -> None:
        for number, env in enumerate(self.envs):
            env.reset(seed=seed + number)

    def step(self, actions: Any) -> None:
        # Not strict: to ask the array for one action more takes 0.5 µs, and nobody's own loop would do that.
        for env, action in zip(self.envs, actions, strict=False):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()


def build(name: str, count: int) -> Any:
    """Make a contestant."""
    makers = [make_cartpole] * count
    by_name: dict[str, Callable[[], Any]] = {
        PLAIN: lambda: PlainLoop(count),
        OURS: lambda: stretto.make_vec("CartPole-v1", count),
        SERIAL: lambda: stretto.make_vec("CartPole-v1", count, backend="serial"),
        SYNC: lambda: SyncVectorEnv(makers),
        ASYNC: lambda: AsyncVectorEnv(makers),
    }
    return by_name[name]()


def serve(name: str, count: int) -> None:
    """Say how long the first steps took, and later ones; then step for as many seconds as each line of the input says."""
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    envs, number = build(name, count), 0
    batches = np.random.default_rng(0).integers(0, 2, (64, count))
    envs.reset(seed=0)

    def some(steps: int) -> float:
        nonlocal number
        began = time.process_time()
        for _ in range(steps):
            envs.step(batches[number % 64])
            number += 1
        return time.process_time() - began

    first = some(FIRST)
    some(2 * FIRST)
    later = min(some(FIRST) for _ in range(3))
    print(first / later, flush=True)
    for line in sys.stdin:
        began, computed, done = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < float(line):
            some(max(1, 64 // count))
            done += max(1, 64 // count)
        wall, cpu = time.perf_counter() - began, time.process_time() - computed
        print(done / wall, done / max(cpu, 1e-9), flush=True)


class Contestant:
    """A contestant in a process of its own; `first` is what its first steps took, over later ones."""

    def __init__(self, name: str, count: int) -> None:
        command = [sys.executable, __file__, "--serve", name, "--counts", str(count)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self._read()[0]

    def turn(self, seconds: float) -> list[float]:
        """Return how many steps it does in a second, and in a second of its CPU time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> list[float]:
        assert self._process.stdout is not None
        return [float(part) for part in self._process.stdout.readline().split()]

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def measure(count: int, rounds: int, seconds: float) -> dict[str, float]:
    """Print what everybody reaches with so many environments; return what the first steps took, over later ones."""
    with contextlib.ExitStack() as stack:
        hosts: dict[str, Contestant] = {}
        for name in NAMES:
            if name != ASYNC or count <= MOST_ASYNC:
                hosts[name] = Contestant(name, count)
                stack.callback(hosts[name].close)
        turns = [{name: host.turn(seconds) for name, host in hosts.items()} for _ in range(rounds)]
        first = {name: host.first for name, host in hosts.items()}
    shown = []
    for name in list(hosts)[1:]:
        wall, cpu = (statistics.median(one[name][k] / one[PLAIN][k] for one in turns) for k in (0, 1))
        shown.append(f"{name.split(' ')[1]} {wall:.2f}" + (f" ({cpu:.2f})" if name in (SERIAL, SYNC) else ""))
    ours, sync = (statistics.median(one[name][1] / one[PLAIN][1] for one in turns) for name in (SERIAL, SYNC))
    bar = least(count)
    verdict = "met" if ours >= bar and ours > sync else "MISSED"
    print(f"{count:5}: {', '.join(shown)}; serial: {verdict} (bar {bar}, and ahead of sync)", flush=True)
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64, 512, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="how long each turn is")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.counts[0])
        return
    print(machine.describe("stretto", "gymnasium", "numpy"))
    print("CartPole, times the plain loop of the same round by the clock, and in brackets by CPU time: medians")
    for count in given.counts:
        first = measure(count, given.rounds, given.seconds)
    verdict = "met" if first[SERIAL] <= MOST_OF_LATER else "MISSED"
    print(f"the first {FIRST} steps of {count}, over later ones, by CPU time: ", end="")
    print(", ".join(f"{name} {first[name]:.2f}" for name in (PLAIN, SERIAL, SYNC)), f": {verdict}, bar {MOST_OF_LATER}")


if __name__ == "__main__":
    main()
