"""What becomes of an agent whose loss is not finite: it stops learning, and what it could not learn from is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from stretto.core import AgentId, WorldSpec
from stretto.spaces import Array

NOT_FINITE = "its loss is not finite"


@dataclass(frozen=True)
class LearnerFailure:
    """Why an agent learns no more, and in which of its updates, if that is known (0: it is not).

    `batch` is what it tried to learn from, by name, and `traceback` that of what its learner raised.
    """

    agent: AgentId
    update: int
    reason: str
    batch: Mapping[str, Array]
    traceback: str = ""

    def __str__(self) -> str:
        return f"update {self.update}: {self.reason}" if self.update else self.reason


class LearnedPolicy(Protocol):
    """A policy for a block of agents that is all in arrays, with a row for each agent."""

    world: WorldSpec

    def state(self) -> Mapping[str, Array]: ...

    def load_state(self, state: Mapping[str, Array]) -> None: ...


class FiniteCheck:
    """Stops agents of a block whose loss is not finite; the others learn on as if nothing had happened.

    Who is stopped acts on by what it was when the interval began: what it has learned since may be what went wrong.
    `failures` and `stopped` are about the last interval.
    """

    def __init__(self, policy: LearnedPolicy) -> None:
        self._policy, self._agents = policy, policy.world.agents
        self.begin()

    def begin(self) -> None:
        """Take note of what agents act by, before an interval changes it."""
        self.failures: list[LearnerFailure] = []
        self.stopped = np.zeros(len(self._agents), np.bool_)
        self._before = {name: np.array(array) for name, array in self._policy.state().items()}

    def passed(self, finite: Array, learning: Array, updates: Tensor, batch: Any) -> Array:
        """Return which of those that are `learning` can, given whose losses are finite, and how many updates each had."""
        failing = learning & ~finite
        if failing.any():
            for agent in np.flatnonzero(failing).tolist():
                tried = {name: np.array(array[agent]) for name, array in arrays_of(batch)}
                self.failures.append(LearnerFailure(self._agents[agent], int(updates[agent]) + 1, NOT_FINITE, tried))
            now = {name: np.array(array) for name, array in self._policy.state().items()}
            for name, before in self._before.items():
                now[name][failing] = before[failing]
            self._policy.load_state(now)
            self.stopped |= failing
        able: Array = learning & ~failing
        return able


def arrays_of(value: Any, name: str = "") -> Iterator[tuple[str, Array]]:
    """Yield the arrays in a batch, each with its name."""
    if isinstance(value, Tensor):
        yield name, value.detach().cpu().numpy()
    elif isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from arrays_of(part, f"{name}.{key}".lstrip("."))
    elif is_dataclass(value):
        for one in fields(value):
            yield from arrays_of(getattr(value, one.name), f"{name}.{one.name}".lstrip("."))
