"""LearnerFailed: what is raised when a learner cannot go on, with the batch that it could not learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from stretto.core import AgentId
from stretto.errors import StrettoError
from stretto.spaces import Array


class LearnerFailed(StrettoError):
    """A learner cannot go on, for example because its loss is not finite. `agent` and `update` say whose and when.

    `batch` is what it tried to learn from, as arrays by name.
    """

    def __init__(self, agent: AgentId, update: int, reason: str, batch: Mapping[str, Array]) -> None:
        super().__init__(agent, update, reason, batch)
        self.agent, self.update, self.reason, self.batch = agent, update, reason, batch

    def __str__(self) -> str:
        return f"the learner of {self.agent} failed in update {self.update}: {self.reason}"


def check_finite(agents: tuple[AgentId, ...], norms: Array, learning: Array, steps: Tensor, batch: Any) -> None:
    """Raise `LearnerFailed` if the gradient of an agent that is `learning` is not finite.

    `steps` counts the updates that each agent has had.
    """
    if np.isfinite(norms).all():
        return
    for agent in np.flatnonzero(~np.isfinite(norms) & learning).tolist():
        tried = {name: np.array(array[agent]) for name, array in _arrays(batch, "")}
        raise LearnerFailed(agents[agent], int(steps[agent]) + 1, "its loss is not finite", tried)


def _arrays(value: Any, name: str) -> Iterator[tuple[str, Array]]:
    """Yield the arrays in a batch, each with its name; all have a leading axis of agents."""
    if isinstance(value, Tensor):
        yield name, value.detach().numpy()
    elif isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _arrays(part, f"{name}.{key}".lstrip("."))
    elif is_dataclass(value):
        for one in fields(value):
            yield from _arrays(getattr(value, one.name), f"{name}.{one.name}".lstrip("."))
