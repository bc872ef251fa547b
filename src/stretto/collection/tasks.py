"""Tasks: which one each rollout gets, as a function of its index, and of what was seen where a source says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from stretto.adapters.trial_views import TaskForm
from stretto.adapters.trials import EPISODE
from stretto.core import NextEpisode
from stretto.errors import UsageError
from stretto.seeding.streams import SeedTree


class RolloutTasks(Protocol):
    """Says which task a rollout has. It is asked in any order, and must not depend on that."""

    def task(self, index: int, stream: np.random.Generator, seen: Sequence[Any]) -> Any:
        """Return the task of rollout `index`; `seen` has the rollouts below `needed(index)`, in order."""

    def needed(self, index: int) -> int:
        """Return how many of the first rollouts must be complete before this one can begin."""


@dataclass(frozen=True, slots=True)
class _Independent:
    """Tasks that depend on the index and on its stream alone."""

    function: Callable[[int, np.random.Generator], Any]

    def task(self, index: int, stream: np.random.Generator, seen: Sequence[Any]) -> Any:
        return self.function(index, stream)

    def needed(self, index: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Tasks that follow from what was seen. They change only after `every` rollouts: all of these have ended by then.

    `function(seen, stream)` is given the rollouts that were complete at the last such point, in the order of their
    indices. `stream` belongs to the rollout that the task is for.
    """

    function: Callable[[Sequence[Any], np.random.Generator], Any]
    every: int

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"a curriculum must change after 1 rollout or more, got every={self.every}")

    def task(self, index: int, stream: np.random.Generator, seen: Sequence[Any]) -> Any:
        return self.function(seen, stream)

    def needed(self, index: int) -> int:
        return index // self.every * self.every


@dataclass(frozen=True, slots=True)
class ShownTasks:
    """The tasks of another source, all of which must have the form in which they are shown to policies."""

    source: RolloutTasks
    form: TaskForm

    def task(self, index: int, stream: np.random.Generator, seen: Sequence[Any]) -> Any:
        task = self.source.task(index, stream, seen)
        if not self.form.fits(task):
            raise UsageError(
                f"with oracle=True all tasks must have the form of the first, and rollout {index} has {task!r}; give all "
                f"tasks as many numbers under the same names, or leave oracle out"
            )
        return task

    def needed(self, index: int) -> int:
        return self.source.needed(index)


def rollout_tasks(tasks: Any) -> RolloutTasks | None:
    """Return the source that a user means by a list of tasks, a function `(index, stream)`, a curriculum or nothing."""
    if tasks is None:
        return None
    if hasattr(tasks, "needed"):
        return cast(RolloutTasks, tasks)
    if callable(tasks):
        return _Independent(tasks)
    if isinstance(tasks, np.ndarray) or (isinstance(tasks, Sequence) and not isinstance(tasks, (str, bytes))):
        choices = list(tasks)
        if not choices:
            raise UsageError(
                "a list of tasks must have one or more, got an empty one; leave tasks out if there are none"
            )
        return _Independent(lambda index, stream: choices[int(stream.integers(len(choices)))])
    raise UsageError(f"tasks must be a list, a function (index, stream) or a Curriculum, got {tasks!r}")


def split_tasks(
    sample: Callable[[np.random.Generator], Any], train: int, held_out: int, seed: int = 0
) -> tuple[list[Any], list[Any]]:
    """Draw tasks to train on and tasks to evaluate on, from streams of their own; no task is in both."""
    tree = SeedTree(seed).child("tasks")
    first = _distinct(sample, tree.child("train").generator(), train, [])
    return first, _distinct(sample, tree.child("eval").generator(), held_out, first)


def _distinct(
    sample: Callable[[np.random.Generator], Any], stream: np.random.Generator, count: int, taken: Sequence[Any]
) -> list[Any]:
    """Draw tasks until there are so many that differ from each other and from those that are taken."""
    known = {_identity(task) for task in taken}
    found: list[Any] = []
    for _ in range(1000 + 100 * count):
        if len(found) == count:
            break
        task = sample(stream)
        if (name := _identity(task)) not in known:
            known.add(name)
            found.append(task)
    if len(found) < count:
        raise UsageError(f"{count} different tasks are needed, and only {len(found)} were found; ask for fewer")
    return found


def _identity(task: Any) -> str:
    return repr(np.asarray(task).tolist()) if isinstance(task, (np.ndarray, list, tuple)) else repr(task)


@dataclass(slots=True)  # not frozen: that would take 0.4 µs more
class Trial:
    """A rollout before it is played: `episodes` of one task, one after the other, and the root of its random numbers.

    With `numbered`, worlds are told which episode of it begins.
    """

    index: int
    task: Any
    has_task: bool
    episodes: int
    tree: SeedTree
    numbered: bool = False

    @property
    def seed(self) -> int:
        """The seed of its first episode."""
        return self.tree.child("episode", 0).seed()

    def __str__(self) -> str:
        task = f", with the task {self.task!r}" if self.has_task else ""
        return f"rollout {self.index}" + (task if len(task) < 200 else f"{task[:199]}…")

    def episode(self, number: int) -> NextEpisode:
        """Return what a slot plays as episode `number` of the trial."""
        seed = self.tree.child("episode", number).seed()
        if not self.has_task and not self.numbered:
            return NextEpisode(seed)
        options = {**({"task": self.task} if self.has_task else {}), **({EPISODE: number} if self.numbered else {})}
        return NextEpisode(seed, options)
