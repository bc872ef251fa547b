"""Half an hour of steps with restarts: memory, descriptors and threads stay what they were.

    python benchmarks/soak.py --minutes 30

Steps vector environments of every sort in turn while their workers (now and then their launcher) are killed, and
prints what the caller, the launcher and the workers hold. Exits with 1 if any of it grows.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import stretto
from stretto.workers.launcher import launcher
from tests.faults.killing import Killer
from tests.faults.worlds import Unrepeatable
from tests.worlds import Drift

SAMPLES = 30
GROWTH_BAR = 0.03
"""The share by which memory may differ between the second third of the time and the last."""


@dataclass
class Held:
    """What is held at one moment, in MB and numbers."""

    seconds: float
    caller: float
    launcher: float
    workers: float
    descriptors: int
    threads: int
    steps: int
    kills: int

    HEAD: ClassVar[str] = (
        f"{'minutes':>7} {'caller':>9} {'launcher':>9} {'a worker':>9} {'descriptors':>12} {'threads':>8} "
        f"{'steps':>12} {'kills':>7}"
    )

    @classmethod
    def now(cls, began: float, worker_pids: Sequence[int], steps: int, kills: int) -> Held:
        gc.collect()
        me = psutil.Process()
        return cls(
            seconds=time.monotonic() - began,
            caller=me.memory_info().rss / 1e6,
            launcher=megabytes(launcher().pid),
            workers=float(np.nanmean([megabytes(pid) for pid in worker_pids])),
            descriptors=me.num_fds(),
            threads=threading.active_count(),
            steps=steps,
            kills=kills,
        )

    def __str__(self) -> str:
        return (
            f"{self.seconds / 60:7.1f} {self.caller:9.1f} {self.launcher:9.1f} {self.workers:9.1f} "
            f"{self.descriptors:12} {self.threads:8} {self.steps:12,} {self.kills:7}"
        )


def megabytes(pid: int | None) -> float:
    """Return what a process holds; not a number if it was just killed."""
    try:
        return psutil.Process(pid).memory_info().rss / 1e6 if pid is not None else np.nan
    except psutil.NoSuchProcess:
        return np.nan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", stretto.SlotTruncated)
    layout = {"backend": "process", "workers": 2, "isolate": True, "max_restarts": 1000}
    made: list[Any] = []
    with (
        stretto.make_vec("CartPole-v1", 16, **layout) as steps,
        stretto.make_vec(Drift, 8, transport="message", **layout) as messages,
        stretto.make_vec("CartPole-v1", 8, **layout) as sends,
        stretto.make_vec(Drift, 4, tasks=[1, 2, 3], **{**layout, "isolate": False}) as shared,
        stretto.make_vec(Unrepeatable, 2, **layout) as lost,
    ):
        made = [steps, messages, sends, shared, lost]
        samples = soak(made, sends, 60 * arguments.minutes)
    return judge(samples)


def soak(envs: list[Any], sends: Any, seconds: float) -> list[Held]:
    """Step all of them in turn; return what was held meanwhile."""
    print(Held.HEAD)
    for one in envs:
        one.reset(seed=0)
    sends.send(np.zeros(sends.num_envs, int))
    killers = [Killer(one, seed=number) for number, one in enumerate(envs)]
    samples: list[Held] = []
    began, rounds = time.monotonic(), 0
    for killer in killers:
        killer.__enter__()
    try:
        while (now := time.monotonic()) < began + seconds:
            rounds += 1
            one_round(envs, sends, rounds)
            if rounds % 4 == 0:
                killers[rounds // 4 % len(killers)].strike_soon()
            if now > began + seconds * len(samples) / SAMPLES:
                settle(envs, sends)
                pids = [pid for one in envs for pid in one.worker_pids]
                steps = sum(one.statistics().steps for one in envs)
                samples.append(Held.now(began, pids, steps, sum(killer.kills for killer in killers)))
                print(samples[-1], flush=True)
    finally:
        for killer in killers:
            killer.__exit__()
    return samples


def one_round(envs: list[Any], sends: Any, number: int) -> None:
    for one in envs:
        actions = np.full(one.num_envs, number % 2)
        for _ in range(25):
            if one is sends:
                ids = one.recv(ready=4).ids
                one.send(actions[: len(ids)], ids)
            else:
                one.step(actions)
    if number % 50 == 0:  # what is made and closed leaves nothing either
        with stretto.make_vec(Drift, 2, backend="process", workers=2) as short:
            short.reset(seed=number)
            short.step([0, 1])


def settle(envs: list[Any], sends: Any) -> None:
    """Let all workers be there, so that they are counted."""
    for one in envs:
        if one is not sends:
            one.get_attr("np_random")


def judge(samples: list[Held]) -> int:
    """Say whether the last third of the samples holds more than the second."""
    third = len(samples) // 3
    middle, late = samples[third : 2 * third], samples[2 * third :]
    failed = False
    for name in ("caller", "launcher", "workers", "descriptors", "threads"):
        before, after = (float(np.nanmedian([getattr(one, name) for one in part])) for part in (middle, late))
        flat = after <= before * (1 + GROWTH_BAR) + (0.5 if name in ("caller", "launcher", "workers") else 0)
        failed |= not flat
        print(f"{name:12} {before:10.1f} -> {after:10.1f}  {'flat' if flat else 'GROWS'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
