"""Workers are killed while rollouts are collected: the set is exact, no rollout comes twice, and memory stays flat.

    python benchmarks/collection_kills.py                   300 kills in one collection, for each way to wait
    python benchmarks/collection_kills.py --minutes 30      one collection after the other for so long, with kills

Needs a checkout (it uses tests/). Exits with 1 if a set differs or if memory grows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak import SAMPLES, Held, judge

import stretto
from stretto.workers.launcher import launcher
from tests.faults.killing import Killer
from tests.worlds import GlobalDrift

GAP_SECONDS = 0.15
"""Between two kills: a worker needs time to start, or nobody ever plays."""

ROLLOUTS_A_KILL, SOAK_ROLLOUTS, SAMPLED = 40, 500, 450
LAYOUT = {"backend": "process", "workers": 3, "isolate": True, "max_restarts": 1_000}
VECTOR = {**LAYOUT, "num_envs": 12}


class Sleepy(GlobalDrift):
    """A world that draws from global generators, in which there is time for kills."""

    def step(self, action: Any) -> Any:
        time.sleep(1e-3)
        return super().step(action)


def choose(observation: Any) -> int:
    """Choose by what is seen, so that whatever goes wrong goes on."""
    return int(observation[0] * 1e3) % 2


class InBlocks(stretto.BlockPolicy):
    """The same for many at once."""

    def step_block(self, observations: Any, states: Any, choices: Any) -> stretto.BlockAnswer:
        return stretto.BlockAnswer((observations[..., 0] * 1e3).astype(np.int64) % 2)


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "whole": (choose, {**LAYOUT, "wait": "whole"}),
    "lockstep": (choose, {**VECTOR, "wait": "lockstep"}),
    "ready-first": (choose, {**VECTOR, "wait": "ready-first"}),
    "ready-first, block": (InBlocks, {**VECTOR, "wait": "ready-first"}),
}


class Workers:
    """Whatever the launcher has started, as `Killer` asks for it."""

    @property
    def worker_pids(self) -> list[int]:
        """The processes that can be killed now."""
        try:
            return [child.pid for child in psutil.Process(launcher().pid).children()]
        except psutil.NoSuchProcess:
            return []


class Strikes:
    """Lets workers be killed as rollouts come in, and counts these."""

    def __init__(self, killer: Killer, most: float) -> None:
        self._killer, self._most, self._last = killer, most, time.monotonic()
        self.seen: Counter[int] = Counter()

    def __call__(self, rollout: stretto.Rollout) -> None:
        self.seen[rollout.index] += 1
        if self._killer.kills < self._most and time.monotonic() > self._last + GAP_SECONDS:
            self._last = time.monotonic()
            self._killer.strike_soon()


def collect(world: Any, policy: Any, count: int, **options: Any) -> stretto.Rollouts:
    """Collect rollouts that have tasks."""
    return stretto.collect(world, policy, count, tasks=lambda index, stream: float(stream.random()), **options)


def storm(kills: int, seed: int, ways: Sequence[str]) -> bool:
    """Kill in one collection of each way; compare it with one in which nobody died. Return whether all are the same."""
    count, same = kills * ROLLOUTS_A_KILL, True
    expected = collect(GlobalDrift, choose, count, wait="whole", backend="serial").digest()
    print(f"{'':20} {'rollouts':>9} {'kills':>6} {'twice':>6} {'missing':>8}  the set")
    for name in ways:
        policy, options = WAYS[name]
        with Killer(Workers(), seed + list(WAYS).index(name)) as killer:
            strikes = Strikes(killer, kills)
            found = collect(Sleepy, policy, count, on_rollout=strikes, **options)
        twice = sum(times > 1 for times in strikes.seen.values())
        exact = found.digest() == expected and not twice and len(strikes.seen) == count
        same &= exact and killer.kills >= kills
        told = "exact" if exact else "DIFFERS"
        print(f"{name:20} {count:9} {killer.kills:6} {twice:6} {count - len(strikes.seen):8}  {told}", flush=True)
    return same


def soak(seconds: float, seed: int) -> bool:
    """Collect again and again, in all ways; say whether what is held meanwhile stays the same."""
    print(Held.HEAD)
    began, steps, rounds = time.monotonic(), 0, 0
    samples: list[Held] = []
    with Killer(Workers(), seed) as killer:
        while time.monotonic() < began + seconds:
            # Each sample is taken in a collection of the same sort, when all but its last rollouts are there.
            last_way = rounds % len(WAYS) == len(WAYS) - 1
            due = last_way and time.monotonic() > began + seconds * len(samples) / SAMPLES
            policy, options = list(WAYS.values())[rounds % len(WAYS)]
            strikes = Strikes(killer, np.inf)

            def hear(rollout: stretto.Rollout, strikes: Strikes = strikes, due: bool = due) -> None:
                strikes(rollout)
                if due and strikes.seen.total() == SAMPLED:
                    samples.append(Held.now(began, Workers().worker_pids, steps, killer.kills))  # noqa: B023  called at once
                    print(samples[-1], flush=True)

            steps += int(collect(Sleepy, policy, SOAK_ROLLOUTS, on_rollout=hear, **options).lengths.sum())
            rounds += 1
    return not judge(samples)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="in each collection (default: 300)")
    parser.add_argument("--minutes", type=float, default=None, help="watch memory for so long instead")
    parser.add_argument(
        "--ways", nargs="+", metavar="WAY", choices=list(WAYS), default=list(WAYS), help="; ".join(WAYS)
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.minutes is None:
        return int(not storm(arguments.kills, arguments.seed, arguments.ways))
    return int(not soak(60 * arguments.minutes, arguments.seed))


if __name__ == "__main__":
    sys.exit(main())
