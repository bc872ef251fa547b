"""Sorrel's treasurehunt with 10 agents: seconds an epoch, beside its own `run_experiment`: python benchmarks/sorrel_epochs.py

Put Sorrel on PYTHONPATH; it needs omegaconf, pillow, matplotlib, ipython and tensorboard. An epoch is 100 turns of all
agents, and a training of each with a batch of 64. Contestants live in processes of their own and sleep while others are
measured. Rounds are interleaved: in each, all have a turn, and ratios are within one round. The first epoch of a turn is not
counted: it has the start of workers. "same" says whether weights, memories and losses are those of the same turns and
trainings one after the other, to the bit. `stacked` has our learners of quantiles in place of Sorrel's models.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
from hosts import Host, serve
from machine import describe

AGENTS, TURNS = 10, 100
OWN = {"run_experiment": None, "run_experiment, 1 native thread": 1}
OURS: dict[str, dict[str, Any]] = {
    "one after the other": {"parallel_training": False},
    "enabled": {},
    "async_learning": {"async_learning": True},
}
STACKED = {"stacked, 1 environment": 1, "stacked, 2 environments": 2, "stacked, 8 environments": 8}
NAMES = (*OWN, *OURS, *STACKED)


class Stamps:
    """A logger of Sorrel's that notes when an epoch ended, the CPU time until then, and its loss."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.times: list[tuple[float, float]] = []
        self.losses: list[float] = []

    def note(self) -> None:
        family = [self._process, *self._process.children(recursive=True)]
        used = sum(sum(one.cpu_times()[:2]) for one in family)
        self.times.append((time.perf_counter(), used))

    def record_turn(self, _epoch: int, loss: Any, _reward: Any, _epsilon: float = 0) -> None:
        self.note()
        self.losses.append(float(loss))

    def between(self, epochs: int) -> dict[str, float]:
        """Return the seconds of an epoch, all but the first, by the clock and of CPU time."""
        (began, used), (ended, used_then) = self.times[0], self.times[-1]
        return {"seconds": (ended - began) / epochs, "cpu": (used_then - used) / epochs}


class Experiment:
    """Sorrel's models, by its own experiment or by ours."""

    def __init__(self, parallel: Mapping[str, Any] | None, threads: int | None) -> None:
        import torch

        from stretto.adapters.sorrel.missions import environment
        from stretto.adapters.sorrel.world import seed_globals

        torch.random.seed = lambda: 1  # else Sorrel's models begin with other weights in every process
        seed_globals(0)
        settings = {"experiment": {"epochs": 0, "record_period": 10**9}, "model": {"epsilon_decay": 0.0005}}
        self.env = environment("treasurehunt", agents=AGENTS, config=settings)
        self._parallel, self._folder = parallel, Path(tempfile.mkdtemp())
        if threads is not None:
            torch.set_num_threads(threads)

    def run(self, epochs: int) -> dict[str, Any]:
        self.env.config.experiment.epochs = epochs
        stamps = Stamps()
        if self._parallel is None:
            self.env.run_experiment(animate=False, logger=stamps, output_dir=self._folder)
        else:
            from stretto.interop.sorrel import ParallelEnvironment

            ParallelEnvironment(self.env, self._parallel).run_experiment_parallel(
                animate=False, logger=stamps, output_dir=self._folder
            )
        digest = hashlib.sha256(json.dumps(stamps.losses).encode())
        for agent in self.env.agents:
            for value in agent.model.state_dict().values():
                digest.update(value.numpy().tobytes())
            digest.update(agent.model.memory.states.tobytes())
        return {**stamps.between(epochs), "digest": digest.hexdigest()}

    def close(self) -> None:
        pass


class Stacked:
    """Our learners, in so many environments."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs

    def run(self, epochs: int) -> dict[str, Any]:
        import stretto

        intervals = -(-epochs // self._num_envs) + 2
        stamps = Stamps()
        settings = {
            "rows": TURNS,
            "updates": self._num_envs,  # as many updates for what is collected as Sorrel has
            "batch": 64,
            "buffer": 1024 * self._num_envs,
            "learning_starts": 64,
            "learning_rate": 0.00025,
            "epsilon": {"begin": 0.6},
            "target_average": 0.001,
            "dueling": True,
            "quantiles": 12,
            "network": {"widths": [250, 250]},
        }
        stretto.train(
            "sorrel_treasurehunt",
            "dqn",
            steps=intervals * TURNS * self._num_envs,
            num_envs=self._num_envs,
            turns="auto",
            config={"dqn": settings, "checkpoint": {"every": None}},
            env_kwargs={"agents": AGENTS, "frames": 5},
            on_interval=lambda _: stamps.note(),
        )
        return {**stamps.between((len(stamps.times) - 1) * self._num_envs), "digest": ""}

    def close(self) -> None:
        pass


def contestant(name: str) -> Any:
    if name in STACKED:
        return Stacked(STACKED[name])
    return Experiment(OURS.get(name), OWN.get(name))


def measure(names: list[str], rounds: int, epochs: int) -> dict[str, list[dict[str, Any]]]:
    hosts: dict[str, Host] = {}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    try:
        for name in names:
            hosts[name] = Host("--contestant", name, script=__file__)
            hosts[name].build(120)
        for number in range(rounds):
            for name, host in hosts.items():
                found[name].append(host.run(epochs, timeout_seconds=240))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    finally:
        for host in hosts.values():
            host.close()
    return found


def show(found: dict[str, list[dict[str, Any]]]) -> None:
    print(f"{'':34}{'s an epoch':>11}{'quartiles':>15}{'CPU s':>8}  own over it: clock, CPU; with 1 thread; same")
    for name, turns in found.items():
        seconds = [one["seconds"] for one in turns]
        low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
        ratios = [
            f"{_ratio(found[own], turns, 'seconds'):6.2f}{_ratio(found[own], turns, 'cpu'):6.2f}"
            for own in OWN
            if own in found
        ]
        same = ""
        if name in OURS and name != "async_learning" and "one after the other" in found:
            plain = found["one after the other"]
            same = str([one["digest"] for one in turns] == [one["digest"] for one in plain])
        used = median(one["cpu"] for one in turns)
        shown = ";".join(ratios)
        print(f"{name:34}{median(seconds):11.3f}{f'{low:.3f}-{high:.3f}':>15}{used:8.3f}  {shown}  {same}")


def _ratio(own: list[dict[str, Any]], ours: list[dict[str, Any]], what: str) -> float:
    return median(one[what] / other[what] for one, other in zip(own, ours, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6, help="of a turn, beside the first")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--contestant", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        serve(lambda: contestant(options.contestant), lambda one, epochs: one.run(epochs))
        return
    print(describe("stretto", "torch", "numpy"))
    show(measure(options.only, options.rounds, options.epochs))


if __name__ == "__main__":
    main()
