"""What a set of rollouts is like: how long they are, what they earned, by task, and their digest."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.collection.experience import Rollout
from stretto.collection.rollouts import joint_digest
from stretto.collection.task_json import encoded

MOST_TASKS = 12
"""Up to how many tasks there is a summary of each."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How numbers are spread; `deviation` is the standard deviation of a sample, 0 for a single one."""

    mean: float
    deviation: float
    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of one or more numbers."""
        mean = math.fsum(values) / len(values)
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(mean, deviation, float(min(values)), float(statistics.median(values)), float(max(values)))


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """The rollouts of one task, as it is written to files."""

    task: Any
    rollouts: int
    returns: Spread
    lengths: Spread


@dataclass(frozen=True, slots=True)
class CollectionSummary:
    """A set of rollouts: returns (over all agents) and lengths (in steps) of each, by task where tasks are few."""

    rollouts: int
    steps: int
    returns: Spread
    lengths: Spread
    tasks: tuple[TaskSummary, ...]
    digest: str


def summarize(rollouts: Iterable[Rollout]) -> CollectionSummary:
    """Look at each of one or more rollouts once, in the order of their indices."""
    returns, lengths, digests = [], [], []
    by_task: dict[str, list[int]] = {}
    for number, one in enumerate(rollouts):
        returns.append(sum(one.returns.values()))
        lengths.append(float(len(one)))
        digests.append(one.digest())
        by_task.setdefault(json.dumps(encoded(one.task)), []).append(number)
    # One summary a task says something where tasks are few, and come again.
    few = 1 < len(by_task) <= MOST_TASKS and len(by_task) < len(returns)
    return CollectionSummary(
        len(returns),
        int(sum(lengths)),
        Spread.of(returns),
        Spread.of(lengths),
        tuple(
            TaskSummary(
                json.loads(task),
                len(numbers),
                Spread.of([returns[i] for i in numbers]),
                Spread.of([lengths[i] for i in numbers]),
            )
            for task, numbers in sorted(by_task.items())
            if few
        ),
        joint_digest(digests),
    )
