"""Heavy worlds with many objects, beside Gymnasium's AsyncVectorEnv: steps a second, and memory.

    python benchmarks/heavy_worlds.py --counts 20 50 200 --rounds 7

A world has as many objects as CybORG and steps as long (see `worlds.LargeNetwork`). Every contestant has a process of its own
and sleeps while others are measured; turns are interleaved. Memory is that of all its processes, shared pages in equal parts
(PSS).
"""

from __future__ import annotations

import argparse
import contextlib
from statistics import median, quantiles

import machine
import psutil
from contestants import AUTO_COPY, PLAIN
from hosts import Host
from worlds import HEAVY

ASYNC = "gymnasium async"
NAMES = (PLAIN, AUTO_COPY, ASYNC)
MOST_MEMORY = 0.2


def megabytes(host: Host) -> float:
    """Return what all processes of a contestant take together."""
    total = 0.0
    for process in host.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss / 1e6
    return total


def measure(count: int, rounds: int, seconds: float) -> None:
    """Measure all contestants with so many worlds, and print what they reach."""
    with contextlib.ExitStack() as stack:
        hosts = {name: stack.enter_context(Host(name, HEAVY.name, str(count))) for name in NAMES}
        choices = {name: host.build(300.0).get("choice") for name, host in hosts.items()}
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        for number in range(rounds + 1):  # the first warms up
            for name, host in hosts.items():
                reply = host.run(seconds, 0.0, timeout_seconds=300.0)
                if number:
                    rates[name].append(reply["steps"] / reply["seconds"])
        memory = {name: megabytes(host) for name, host in hosts.items()}
    print(f"\n{count} worlds; {choices[AUTO_COPY]}")
    for name in NAMES:
        low, middle, high = _ratios(rates[name], rates[PLAIN])
        figures = f"{median(rates[name]):7,.0f} steps/s  {middle:.2f} [{low:.2f}, {high:.2f}] x plain"
        print(f"  {name:22} {figures}  {memory[name]:7,.0f} MB")
    _, over, _ = _ratios(rates[AUTO_COPY], rates[ASYNC])
    share = memory[AUTO_COPY] / memory[ASYNC]
    print(f"  {'met   ' if over > 1 else 'MISSED'} {over:.2f} of AsyncVectorEnv's speed, bar 1")
    print(
        f"  {'met   ' if share <= MOST_MEMORY else 'MISSED'} {share:.2f} of its memory, bar {MOST_MEMORY}", flush=True
    )


def _ratios(rates: list[float], others: list[float]) -> list[float]:
    """Return the quartiles of the ratios of single rounds."""
    return quantiles([one / other for one, other in zip(rates, others, strict=True)], n=4, method="inclusive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[20, 50, 200])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each turn is")
    given = parser.parse_args()
    print(machine.describe("stretto", "gymnasium", "numpy"))
    print("steps/s, medians of the ratios to the plain loop of the same round with quartiles, and memory")
    for count in given.counts:
        measure(count, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
