"""What the settings under `parallel` stand for: where worlds are stepped, and where learners compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stretto.core import AUTO, SEQUENTIAL, SIMULTANEOUS, TurnWorld
from stretto.errors import UsageError
from stretto.missions.mission import Mission
from stretto.training.settings import Config


@dataclass(frozen=True)
class Choices:
    """How a run is computed. `turns` and `loop` apart, none of it changes a result; `workers`: `None` is as many as are free.

    `turns` are `auto` until `settled_turns` has looked at the world. In which way sequential ones are played changes nothing.
    """

    turns: str
    learner_set: str
    loop: str
    workers: int | None
    serial: bool


def choices_of(config: Config) -> Choices:
    """Return what a configuration stands for; a finer choice that says otherwise is refused."""
    parallel = config.parallel
    turns = _one("parallel.parallel_actions", parallel.parallel_actions, {True: AUTO, False: SEQUENTIAL}, config)
    if parallel.parallel_actions is not None:
        turns = AUTO  # of a world that is not played in turns nothing is asked
    if parallel.use_threads and parallel.parallel_training is False:
        raise _conflict("parallel.use_threads", True, "parallel.parallel_training", False)
    sets = {True: "threads" if parallel.use_threads else "stacked", False: "sequential"}
    training = parallel.parallel_training
    if parallel.use_threads and training is None:
        training = True
    named = "parallel.parallel_training" if not parallel.use_threads else "parallel.use_threads"
    learner_set = _one(named, training, sets, config)
    loop = _one("parallel.async_learning", parallel.async_learning, {True: "pipelined", False: "sync"}, config)
    if not parallel.enabled:
        if config.learner_set in ("threads", "processes"):
            raise _conflict("parallel.enabled", False, "learner_set", config.learner_set)
        for name in ("parallel_training", "use_threads", "num_workers"):
            if getattr(parallel, name):
                raise _conflict("parallel.enabled", False, f"parallel.{name}", getattr(parallel, name))
        learner_set = "stacked" if learner_set in (None, "auto") else learner_set
    return Choices(
        turns or SIMULTANEOUS, learner_set or "auto", loop or "sync", parallel.num_workers, not parallel.enabled
    )


def settled_turns(config: Config, mission: Mission) -> Config:
    """Return a configuration whose turns are those of the world: only one that is played in turns has other ones."""
    if choices_of(config).turns != AUTO:
        return config
    world = mission.make()
    in_turns: Any = SEQUENTIAL if config.parallel.parallel_actions is False else AUTO
    turns: Any = in_turns if isinstance(world, TurnWorld) else SIMULTANEOUS
    world.close()
    return replace(config, turns=turns, parallel=replace(config.parallel, parallel_actions=None))


def world_options(choices: Choices, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `make_vec` with what was chosen; those that say otherwise are refused."""
    found = dict(options)
    if choices.serial:
        if found.get("backend", AUTO) not in (AUTO, "serial"):
            raise _conflict("parallel.enabled", False, "backend", found["backend"])
        if found.get("workers") is not None:
            raise _conflict("parallel.enabled", False, "workers (--jobs)", found["workers"])
        found["backend"] = "serial"
    elif choices.workers is not None:
        if found.get("workers") not in (None, choices.workers):
            raise _conflict("parallel.num_workers", choices.workers, "workers (--jobs)", found["workers"])
        found["workers"] = choices.workers
    return found


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
