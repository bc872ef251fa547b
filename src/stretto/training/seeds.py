"""Runs that differ in their seed alone, in processes of their own where cores allow, and what came of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.budget import CpuBudget, default_budget
from stretto.errors import Place, UsageError, WorkerDied
from stretto.evaluation.playing.task_queue import TaskQueue
from stretto.evaluation.statistics.averages import mean
from stretto.run_folder import PLAN
from stretto.training.history import History
from stretto.training.page import SeedHistory
from stretto.training.run_files import read_rows, seed_folder, write_results
from stretto.training.train import train
from stretto.workers.backends import PROCESS, SERIAL
from stretto.workers.base import Port
from stretto.workers.mail import unsendable
from stretto.workers.requests import Request
from stretto.workers.supervisor import Supervisor

__calls_user_code__ = True

_START_SECONDS = 300.0

MOST_RESTARTS = 3
"""How often a run goes on whose process has died."""


@dataclass(frozen=True, slots=True)
class _Begin:
    """Message: answer as soon as you can be given something."""


@dataclass(frozen=True, slots=True)
class _Seed:
    """Message: do the run of a seed, in a folder, with so many cores."""

    seed: int
    folder: Path
    cores: int


@dataclass(frozen=True)
class SeedTrainer:
    """Does runs in a worker; `arguments` are those of `train`."""

    world: Any
    arguments: Mapping[str, Any]

    def __call__(self, port: Port) -> _SeedService:
        return _SeedService(port, self)


class _SeedService:
    def __init__(self, port: Port, trainer: SeedTrainer) -> None:
        self._port, self._trainer = port, trainer

    def handle(self, message: Any) -> object:
        if not isinstance(message, _Seed):
            return None
        self._port.place = lambda: Place(f"training (seed {message.seed})", seed=message.seed)
        given: dict[str, Any] = {"seed": message.seed, "out": message.folder, "budget": CpuBudget(message.cores)}
        given["resume"] = (message.folder / PLAN).exists()  # the process that began it has died
        if given["resume"]:
            given["init_from"] = None  # that is in its first checkpoint
        return train(self._trainer.world, **{**self._trainer.arguments, **given}).summary()

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


def train_seeds(
    world: Any,
    seeds: Sequence[int],
    out: str | Path,
    *,
    resume: bool = False,
    jobs: int | None = None,
    budget: CpuBudget | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Do a run for each seed, and return the summary of all; each lies in a folder of its own within `out`.

    Args:
        world: as of `train`.
        seeds: one or more, all different.
        out: a new folder.
        resume: go on with what was begun in that folder; there may be more seeds.
        jobs: how many runs are done at once, by default as many as there are cores; 0 does them in the caller.
        budget: the cores to draw on, which runs share.
        arguments: as of `train`; each run has the same.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds must be one or more, all different, got {list(seeds)}")
    folder, cores = Path(out), budget or default_budget()
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"runs of several seeds need a new folder, and {folder} has something in it; choose another")
    trainer = SeedTrainer(world, arguments)
    workers = min(len(seeds), cores.free if jobs is None else jobs)
    if workers > 1 and unsendable(trainer) is not None:
        workers = 0
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [_Seed(seed, seed_folder(folder, seed), max(1, cores.free // max(1, workers))) for seed in seeds]
    lease = cores.lease(max(1, workers) * tasks[0].cores)
    try:
        found = _done(trainer, tasks, workers)
    finally:
        lease.release()
    return _finish(folder, [found[seed] for seed in seeds])


def _done(trainer: SeedTrainer, tasks: Sequence[_Seed], workers: int) -> dict[int, Any]:
    found: dict[int, Any] = {}
    lost = dict.fromkeys((task.seed for task in tasks), 0)

    def message(task: _Seed) -> tuple[object, str, float | None]:
        return task, f"training (seed {task.seed})", None

    def take(task: _Seed, request: Request) -> list[_Seed]:
        if request.lost:
            lost[task.seed] += 1
            if lost[task.seed] <= MOST_RESTARTS:
                return [task]  # it goes on from its last checkpoint
            reason = (
                f"the process of the run with seed {task.seed} ended again and again; what it did is in {task.folder}"
            )
            raise WorkerDied(reason, Place("training", seed=task.seed)) from request.error
        if request.error is not None:
            raise request.error
        found[task.seed] = request.value
        return []

    supervisor = Supervisor(PROCESS if workers > 1 else SERIAL)
    try:
        for _ in range(max(1, workers)):
            supervisor.add_seat(trainer, inline=workers <= 1)
        TaskQueue(supervisor, _Begin(), _START_SECONDS).do(tasks, message, take)
    finally:
        supervisor.close()
    return found


def _finish(folder: Path, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write and return what came of all seeds."""
    runs = [_history(folder, one) for one in summaries]
    plan = json.loads((seed_folder(folder, runs[0].seed) / PLAN).read_bytes())
    summary = {
        **{name: summaries[0][name] for name in ("mission", "learner")},
        "seeds": [run.seed for run in runs],
        "return": mean([value for run in runs if (value := _result(run.summary)) is not None]),
        "runs": {str(run.seed): run.summary for run in runs},
    }
    write_results(folder, summary, plan, runs)
    return summary


def _history(folder: Path, summary: Mapping[str, Any]) -> SeedHistory:
    """Return what is known of the run of a seed."""
    history = History(read_rows(seed_folder(folder, summary["seed"])))
    return SeedHistory(summary["seed"], history.rows, summary, history.evaluations)


def _result(summary: Mapping[str, Any]) -> float | None:
    """Return the mean return of a run: in held-out episodes, if there were some."""
    if "evaluation" in summary:
        return float(summary["evaluation"]["return"])
    return mean([one["return"] for one in summary["agents"].values() if one["return"] is not None])
