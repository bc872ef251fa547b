"""SeveralRuns: training runs in processes of their own; one whose process dies goes on from its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stretto.budget import CpuBudget, default_budget
from stretto.errors import Place, WorkerDied
from stretto.evaluation.playing.task_queue import TaskQueue
from stretto.run_folder import PLAN
from stretto.workers.backends import PROCESS, SERIAL
from stretto.workers.base import Port
from stretto.workers.launcher import launcher
from stretto.workers.mail import unsendable
from stretto.workers.requests import Request
from stretto.workers.retries import MOST_RESTARTS
from stretto.workers.supervisor import Supervisor

__calls_user_code__ = True

_START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Begin:
    """Message: answer as soon as you can be given something."""


@dataclass(frozen=True, slots=True)
class RunTask:
    """Message: do the run of a seed, in a folder, with so many cores; `name` tells it from the others.

    `arguments` of `train` count more than those that all runs have.
    """

    name: str
    seed: int
    folder: Path
    arguments: Mapping[str, Any] = field(default_factory=dict)
    cores: int = 1


Ended = Callable[[RunTask, Mapping[str, Any] | Exception], None]
"""Hears of a run that is over: its summary, or what ended it."""


@dataclass(frozen=True)
class RunTrainer:
    """Does runs in a worker; `arguments` are those of `train`."""

    world: Any
    arguments: Mapping[str, Any]

    def __call__(self, port: Port) -> _RunService:
        return _RunService(port, self)


class _RunService:
    def __init__(self, port: Port, trainer: RunTrainer) -> None:
        self._port, self._trainer = port, trainer

    def handle(self, message: Any) -> object:
        if not isinstance(message, RunTask):
            return None
        from stretto.training.train import train  # whoever only asks for runs needs no torch

        self._port.place = lambda: Place(f"training ({message.name})", seed=message.seed)
        given: dict[str, Any] = {"seed": message.seed, "out": message.folder, "budget": CpuBudget(message.cores)}
        given["resume"] = (message.folder / PLAN).exists()  # the process that began it has died
        if given["resume"]:
            given["init_from"] = None  # that is in its first checkpoint
        return train(self._trainer.world, **{**self._trainer.arguments, **message.arguments, **given}).summary()

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


class SeveralRuns:
    """Workers that each do one run at a time.

    Args:
        world: as of `train`.
        arguments: as of `train`, for all runs.
        most: how many runs there are at once at the most.
        jobs: how many are done at once, by default as many as there are cores; 0 does them in the caller.
        budget: the cores to draw on, which runs share.
    """

    def __init__(
        self, world: Any, arguments: Mapping[str, Any], *, most: int, jobs: int | None, budget: CpuBudget | None
    ) -> None:
        cores, trainer = budget or default_budget(), RunTrainer(world, arguments)
        workers = min(most, cores.free if jobs is None else jobs)
        if workers > 1 and unsendable(trainer) is not None:
            workers = 0
        self._cores = max(1, cores.free // max(1, workers))
        self._lease = cores.lease(max(1, workers) * self._cores)
        if workers > 1:
            launcher().preload_torch()
        self._supervisor = Supervisor(PROCESS if workers > 1 else SERIAL)
        for _ in range(max(1, workers)):
            self._supervisor.add_seat(trainer, inline=workers <= 1)
        self._queue = TaskQueue(self._supervisor, _Begin(), _START_SECONDS)

    def do(self, tasks: Sequence[RunTask], ended: Ended) -> None:
        """Do these runs; `ended` hears of each, in the order in which they end."""
        lost = dict.fromkeys((task.folder for task in tasks), 0)

        def message(task: RunTask) -> tuple[object, str, float | None]:
            return replace(task, cores=self._cores), f"training ({task.name})", None

        def take(task: RunTask, request: Request) -> list[RunTask]:
            if request.lost:
                lost[task.folder] += 1
                if lost[task.folder] <= MOST_RESTARTS:
                    return [task]  # it goes on from its last checkpoint
                died = WorkerDied(
                    f"the process of the run with {task.name} ended again and again; what it did is in {task.folder}",
                    Place("training", seed=task.seed),
                )
                died.__cause__ = request.error
                ended(task, died)
            elif isinstance(request.error, Exception):
                ended(task, request.error)
            elif request.error is not None:
                raise request.error
            else:
                ended(task, request.value)
            return []

        self._queue.do(tasks, message, take)

    def close(self) -> None:
        """End the workers, and give their cores back. May be called twice."""
        self._supervisor.close()
        self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
