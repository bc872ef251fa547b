"""PettingZoo's simple_spread in a vector environment, beside a plain loop over as many: python benchmarks/many_agents.py

Every contestant has a process of its own, which sleeps while others are measured; turns are interleaved. Figures are medians
and quartiles of the ratios to the plain loops just before and after. What is done in one process is compared by its CPU time,
which other programs disturb less, and `auto` by the clock. The plain loop gives actions by agent and lays nothing together.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from functools import partial
from statistics import quantiles
from typing import Any

import numpy as np
from hosts import Host, serve
from machine import describe, load_warning
from worlds import simple_spread

import stretto
from stretto.budget import available_cores

PLAIN, SERIAL, AUTO = "plain loop", "serial", "auto"
NAMES = (PLAIN, SERIAL, AUTO)
LEAST_SERIAL, LEAST_AUTO_A_CORE = 0.93, 0.9
BATCHES = 32


class PlainLoop:
    """Steps environments one after the other; one whose episode is over is reset in place of a step, as ours are."""

    choice = None

    def __init__(self, agents: int, count: int) -> None:
        self._envs = [simple_spread(agents) for _ in range(count)]
        for number, env in enumerate(self._envs):
            env.reset(seed=number)

    def step(self, actions: dict[str, Any]) -> None:
        for i, env in enumerate(self._envs):
            if env.agents:
                env.step({agent: actions[agent][i] for agent in env.agents})
            else:
                env.reset()

    def close(self) -> None:
        for env in self._envs:
            env.close()


def build(name: str, agents: int, count: int) -> Any:
    """Make a contestant that was reset."""
    if name == PLAIN:
        return PlainLoop(agents, count)
    envs = stretto.make_vec(partial(simple_spread, agents), count, backend=name, copy=False)
    envs.reset(seed=0)
    return envs


def run(contestant: Any, batches: list[dict[str, Any]], seconds: float) -> dict[str, float]:
    """Step for so long; return how many steps of all that were in a second, and in a second of CPU time of this process."""
    began, computed, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        contestant.step(batches[steps % BATCHES])
        steps += 1
    return {"clock": steps / (time.perf_counter() - began), "cpu": steps / (time.process_time() - computed)}


def be(name: str, agents: int, count: int) -> None:
    """Be a contestant."""
    draw = np.random.default_rng(0)
    batches = [{f"agent_{i}": draw.integers(0, 5, count) for i in range(agents)} for _ in range(BATCHES)]
    serve(lambda: build(name, agents, count), lambda contestant, seconds: run(contestant, batches, seconds))


def measure(agents: int, count: int, rounds: int, seconds: float) -> None:
    """Measure all contestants with so many agents, and print what they reach."""
    with contextlib.ExitStack() as stack:
        hosts = {name: stack.enter_context(Host(name, str(agents), str(count), script=__file__)) for name in NAMES}
        choices = {name: host.build(120.0)["choice"] for name, host in hosts.items()}
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
        for _ in range(rounds + 1):
            for name in NAMES:
                turns[name].append(hosts[name].run(seconds, timeout_seconds=60.0))
        turns[PLAIN].append(hosts[PLAIN].run(seconds, timeout_seconds=60.0))
    print(f"\n{agents} agents, {count} environments; {choices[AUTO]}")
    cores = available_cores()
    for name, clock, least in ((SERIAL, "cpu", LEAST_SERIAL), (AUTO, "clock", LEAST_AUTO_A_CORE * cores)):
        plain = [turn[clock] for turn in turns[PLAIN]]
        beside = [(before + after) / 2 for before, after in itertools.pairwise(plain[1:])]
        ratios = [turn[clock] / base for turn, base in zip(turns[name][1:], beside, strict=True)]
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        verdict = "met   " if middle >= least else "MISSED"
        print(
            f"  {verdict} {name} by {clock}: {middle:.2f} [{low:.2f}, {high:.2f}] x plain, bar {least:.2f}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--count", type=int, default=32, help="how many environments")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each turn is")
    given = parser.parse_args()
    print(describe("stretto", "pettingzoo", "mpe2", "numpy"))
    if warning := load_warning():
        print(warning)
    for agents in given.agents:
        measure(agents, given.count, given.rounds, given.seconds)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in NAMES:
        be(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
