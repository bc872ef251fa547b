"""Tasks: what an episode is about; its reset is given it as `options={"task": ...}`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stretto.errors import UsageError
from stretto.seeding.streams import SeedTree

TaskSource = Callable[[int, int, np.random.Generator], Any]
"""`(slot, episode, stream) -> task`: a function of these alone, so that it does not matter who asks when."""

Tasks = TaskSource | Sequence[Any]
"""A source of tasks, or a sequence to draw them from."""


def check_tasks(tasks: Any) -> None:
    """Raise unless this is a source of tasks, or `None`."""
    if tasks is not None and not callable(tasks) and (not isinstance(tasks, Sequence) or not tasks):
        raise UsageError(
            f"tasks must be a function (slot, episode, stream) -> task, or a sequence with some, got {tasks!r}"
        )


def task_source(tasks: Tasks) -> TaskSource:
    """Return the source of tasks that a user's `tasks` stand for."""
    if callable(tasks):
        return tasks
    choices = list(tasks)
    return lambda slot, episode, stream: choices[stream.integers(len(choices))]


def task_of(tasks: Tasks, slot: int, episode: int, tree: SeedTree) -> Any:
    """Return the task of an episode, drawn from the stream that it has in the slot's tree."""
    return task_source(tasks)(slot, episode, tree.child("task", episode).generator())


def first_resets(tasks: Tasks | None, count: int = 4, seed: int = 0, *, seeded: bool = False) -> list[dict[str, Any]]:
    """Return the arguments of so many resets of slot 0, each with its task; the first has a seed, or, if `seeded`, all."""
    arguments: list[dict[str, Any]] = []
    for episode in range(count):
        given: dict[str, Any] = {"seed": seed + episode} if seeded or not episode else {}
        if tasks is not None:
            given["options"] = {"task": task_of(tasks, 0, episode, SeedTree(seed))}
        arguments.append(given)
    return arguments


def describe_tasks(tasks: Tasks) -> str | list[str]:
    """Return what a record says of tasks: each of a sequence, or the name of the function that is their source."""
    if not callable(tasks):
        return [repr(task) for task in tasks]
    return f"{getattr(tasks, '__module__', '')}:{getattr(tasks, '__qualname__', type(tasks).__qualname__)}"
