"""What the settings under `parallel` stand for: where worlds are stepped, and where learners compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stretto.core import SEQUENTIAL, SIMULTANEOUS
from stretto.errors import UsageError
from stretto.training.settings import Config


@dataclass(frozen=True)
class Choices:
    """How a run is computed. `turns` apart, none of it changes a result; `workers` is `None` for as many as are free."""

    turns: str
    learner_set: str
    loop: str
    workers: int | None
    serial: bool


def choices_of(config: Config) -> Choices:
    """Return what a configuration stands for; a finer choice that says otherwise is refused.

    `turns: auto` has the result of `sequential` turns. They are computed one after the other here.
    """
    parallel = config.parallel
    turns = _one("parallel.parallel_actions", parallel.parallel_actions, {True: "auto", False: SEQUENTIAL}, config)
    sets = {True: "threads" if parallel.use_threads else "stacked", False: "sequential"}
    training = parallel.parallel_training
    if parallel.use_threads and training is None:
        training = True
    named = "parallel.parallel_training" if not parallel.use_threads else "parallel.use_threads"
    learner_set = _one(named, training, sets, config)
    loop = _one("parallel.async_learning", parallel.async_learning, {True: "pipelined", False: "sync"}, config)
    if not parallel.enabled:
        for key, chosen in (("learner_set", config.learner_set), ("loop", config.loop)):
            if chosen in ("threads", "processes", "pipelined"):
                raise _conflict("parallel.enabled", False, key, chosen)
        for name in ("parallel_training", "async_learning", "use_threads", "num_workers"):
            if getattr(parallel, name):
                raise _conflict("parallel.enabled", False, f"parallel.{name}", getattr(parallel, name))
        learner_set = "stacked" if learner_set in (None, "auto") else learner_set
    if loop == "pipelined":
        raise UsageError(
            "loop: pipelined (parallel.async_learning) learns while it collects, which is not there yet; leave it out"
        )
    turns = {None: SIMULTANEOUS, "auto": SEQUENTIAL}.get(turns, turns)
    return Choices(str(turns), learner_set or "auto", loop or "sync", parallel.num_workers, not parallel.enabled)


_FINER = {
    "parallel.parallel_actions": "turns",
    "parallel.parallel_training": "learner_set",
    "parallel.use_threads": "learner_set",
    "parallel.async_learning": "loop",
}


def _one(key: str, value: bool | None, meanings: dict[bool, str], config: Config) -> str | None:
    """Return what a switch and the finer choice that it stands for say together."""
    finer: str | None = getattr(config, _FINER[key])
    if value is None:
        return finer
    if finer is not None and finer != meanings[value]:
        raise _conflict(key, value, _FINER[key], finer)
    return meanings[value]


def _conflict(key: str, value: Any, other: str, chosen: Any) -> UsageError:
    return UsageError(
        f"two settings must not contradict each other, got {key}: {str(value).lower()} beside {other}: "
        f"{str(chosen).lower()}; leave one of them out"
    )
