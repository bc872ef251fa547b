"""What a pool of EnvPool loses as a vector environment of ours: python benchmarks/pools.py [--envs 64 1024]

Both pools are in this process, with equal arguments, and step CartPole with the same actions. In each round both have a turn,
every other round in reverse. A ratio is of the two turns of a round, by the clock and by the computing time of all threads.
The table has the medians of the rounds, and quartiles of the clock's. The first row is a second pool without us: what equal
pools differ by. Exits with 1 if a bar is missed by the clock.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any

import numpy as np
from machine import describe, load_warning

import stretto

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about parts of itself
    import envpool

LEAST = 0.95
TASK = "CartPole-v1"


def turn(step: Callable[[Any], Any], actions: np.ndarray, seconds: float) -> tuple[float, float]:
    """Step for so long; return the steps of all worlds a second, and in a second of computing."""
    calls, began, computed = 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - began) < seconds:
        for _ in range(16):
            step(actions)
        calls += 16
    steps = calls * len(actions)
    return steps / passed, steps / (time.process_time() - computed)


def race(count: int, threads: int, rounds: int, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Return the rates of each by round."""
    given: dict[str, int] = {"num_threads": threads} if threads else {}
    with ExitStack() as stack:
        steps: dict[str, Callable[[Any], Any]] = {}
        for name in ("envpool", "envpool again"):
            pool = envpool.make(TASK, env_type="gymnasium", num_envs=count, seed=0, **given)
            stack.callback(pool.close)
            pool.reset()
            steps[name] = pool.step
        for name, options in {"stretto": {}, "stretto, copy=False": {"copy": False}}.items():
            envs = stretto.make_vec(f"envpool:{TASK}", count, env_kwargs=given, **options)
            stack.callback(envs.close)
            envs.reset(seed=0)
            steps[name] = envs.step
        actions = np.arange(count) % 2
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for number in range(-1, rounds):
            for name in steps if number % 2 else reversed(steps):
                rate = turn(steps[name], actions, seconds)
                if number >= 0:  # the first one warms up
                    rates[name].append(rate)
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(description="What a pool of EnvPool loses as a vector environment of ours.")
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 0], help="of a pool; 0 leaves it to EnvPool")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    options = parser.parse_args()
    if warning := load_warning():
        print(warning)
    print(describe("stretto", "envpool", "gymnasium", "numpy"))
    missed = False
    for threads in options.threads:
        for count in options.envs:
            rates = race(count, threads, options.rounds, options.seconds)
            base = rates.pop("envpool")
            print(
                f"\n{count} worlds, num_threads {threads or 'by EnvPool'}: {median(one for one, _ in base):,.0f} steps/s"
            )
            for name, mine in rates.items():
                clock, computed = ([one[i] / other[i] for one, other in zip(mine, base, strict=True)] for i in range(2))
                low, middle, high = quantiles(clock, n=4)
                late = name != "envpool again" and middle < LEAST
                missed |= late
                told = f"{middle:.3f} ({low:.3f} to {high:.3f}), computing {median(computed):.3f}"
                print(f"  {name:20} {told}{'  MISSED' if late else ''}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
