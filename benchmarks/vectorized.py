"""What the vectorized form of CartPole is worth: ours, plain environments, and Gymnasium's own.

    python benchmarks/vectorized.py [--rounds 21] [--seconds 0.2] [--envs 64,1024,8192,65536] [--plain-at-most 8192]

Each contestant lives in a process of its own and sleeps while others are measured. Rounds are interleaved, every other
one in reverse. A ratio is of two turns of one round; the table has the median of the rounds and their quartiles. Every
step of all worlds counts, also one that only resets: all three reset equally often. Arrays are copies, as by default.
Plain environments are left out beyond --plain-at-most: each takes memory of its own, and 65,536 take minutes to build.
Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import dataclass
from statistics import median, quantiles

from contestants import GYMNASIUM_BATCHED, OURS_BATCHED, OURS_PLAIN
from hosts import Host
from machine import describe, load_warning

WARM_UP_SECONDS, BUILD_SECONDS, TURN_SECONDS = 0.5, 600.0, 60.0
LEAST_OVER_PLAIN = {1_024: 20.0}
LEAST_OVER_GYMNASIUM = 0.95


@dataclass(frozen=True)
class Row:
    """How the three did with so many worlds: rates by round, and what runs ours."""

    num_envs: int
    rates: dict[str, list[float]]
    choice: str

    def ratios(self, other: str) -> list[float]:
        """Return how many times faster ours were than the other, by round."""
        return [ours / theirs for ours, theirs in zip(self.rates[OURS_BATCHED], self.rates[other], strict=True)]

    @property
    def is_spread(self) -> bool:
        """Whether there was enough work for more than one core."""
        return "workers" in self.choice

    def missed(self) -> list[str]:
        """Say which bars were missed."""
        missed = []
        bars = [(OURS_PLAIN, LEAST_OVER_PLAIN.get(self.num_envs)), (GYMNASIUM_BATCHED, LEAST_OVER_GYMNASIUM)]
        if self.is_spread:
            bars[1] = (GYMNASIUM_BATCHED, 1.0)
        for other, least in bars:
            if least is not None and other in self.rates and (got := median(self.ratios(other))) < least:
                missed.append(f"{self.num_envs:,} worlds: {got:.2f} times {other}, the bar is {least:g}")
        return missed


def race(num_envs: int, names: list[str], rounds: int, seconds: float) -> Row:
    """Let the contestants step in turn."""
    with contextlib.ExitStack() as stack:
        hosts = {name: stack.enter_context(Host(name, "CartPole", str(num_envs))) for name in names}
        choices = {name: host.build(BUILD_SECONDS)["choice"] for name, host in hosts.items()}
        for host in hosts.values():
            host.run(WARM_UP_SECONDS, 0.0, timeout_seconds=TURN_SECONDS)
        rates: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            print(f"\r{num_envs:,} worlds, round {number + 1} of {rounds}   ", end="", file=sys.stderr)
            for name in names if number % 2 else reversed(names):
                turn = hosts[name].run(seconds, 0.0, timeout_seconds=TURN_SECONDS)
                rates[name].append(turn["steps"] / turn["seconds"])
        print(file=sys.stderr)
        return Row(num_envs, rates, choices[OURS_BATCHED])


def told(values: list[float]) -> str:
    """Return the median, and in brackets the quartiles."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--envs", default="64,1024,8192,65536", help="how many worlds, separated by commas")
    parser.add_argument("--plain-at-most", type=int, default=8_192)
    given = parser.parse_args()
    print(describe("stretto", "gymnasium", "numpy"))
    if warning := load_warning():
        print(warning)
    print("\n| worlds | steps/s | over plain environments | over Gymnasium's own | what runs ours |")
    print("|---:|---:|---:|---:|---|")
    missed: list[str] = []
    for num_envs in map(int, given.envs.split(",")):
        plain = [OURS_PLAIN] if num_envs <= given.plain_at_most else []
        row = race(num_envs, [GYMNASIUM_BATCHED, OURS_BATCHED, *plain], given.rounds, given.seconds)
        over_plain = told(row.ratios(OURS_PLAIN)) if plain else ""
        cells = (f"{median(row.rates[OURS_BATCHED]):,.0f}", over_plain, told(row.ratios(GYMNASIUM_BATCHED)), row.choice)
        print(f"| {num_envs:,} | {' | '.join(cells)} |", flush=True)
        missed += row.missed()
    print("\n" + ("\n".join(missed) if missed else "Every bar is met."))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
