"""Experience: what agents saw, did and were given, in rollouts (whole trials) and segments (some rows of every slot)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from stretto.core import AgentId
from stretto.policies.states import map_state
from stretto.spaces import Array


@dataclass(frozen=True, slots=True)
class Experience:
    """What agents of one kind saw, did and were given: rows, then slots (in a segment), then agents.

    The last observation of an episode has a row of its own, in which nobody `acted`; so what follows a row is always the
    next one. `says` has what the policy said about its actions, by name.
    """

    agents: tuple[AgentId, ...]
    observations: Any
    actions: Any
    acted: Array
    rewards: Array
    terminated: Array
    truncated: Array
    says: Mapping[str, Any] = field(default_factory=dict)

    def map(self, function: Any, agents: tuple[AgentId, ...] | None = None) -> Experience:
        """Return another one, with a function of every array in place of it."""
        arrays = {name: map_state(function, getattr(self, name)) for name in COLUMNS}
        return Experience(self.agents if agents is None else agents, **arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        # Small arrays are pickled as one: numpy takes 7 µs for each, and rollouts of short episodes have little else.
        small, rest = dict[str, Array](), dict[str, Any]()
        for name in COLUMNS:
            value = getattr(self, name)
            is_small = type(value) is np.ndarray and value.nbytes < _SMALL_BYTES and not value.dtype.hasobject
            (small if is_small else rest)[name] = value
        order = sorted(
            small, key=lambda name: -small[name].itemsize
        )  # each lies at a multiple of the size of its items
        heads = [(name, small[name].dtype, small[name].shape) for name in order]
        return _unpickled, (self.agents, heads, bytearray().join([small[name].tobytes() for name in order]), rest)


_SMALL_BYTES = 1 << 16


def _unpickled(
    agents: tuple[AgentId, ...], heads: list[tuple[str, Any, Any]], data: bytearray, rest: dict[str, Any]
) -> Experience:
    offset = 0
    for name, dtype, shape in heads:
        rest[name] = array = np.ndarray(shape, dtype, data, offset)
        offset += array.nbytes
    return Experience(agents, **rest)


COLUMNS = tuple(one.name for one in fields(Experience))[1:]


@dataclass(frozen=True)
class Segment:
    """So many rows of every slot, kind by kind, in arrays (rows, slots, agents, ...), with episodes running on.

    `following` has what all see after the last row: where an episode ended with that row, its last observation.
    `trials` is the number of the trial that each slot plays now. In sequential turns that is `provisional`: agents may see
    something else when it is their turn.
    """

    kinds: tuple[Experience, ...]
    following: tuple[Any, ...]
    trials: Array
    provisional: bool = False


@dataclass(frozen=True)
class Rollout:
    """One trial: episodes of one task that follow each other. `ends` are the rows that hold their last observations.

    With one agent, `observations`, `actions` and so on have a row for each step, and no axis of agents. The last
    observations are not among them, but in `last_observations`. With several agents, `agents[name]` has the same of each.
    """

    index: int
    seed: int
    task: Any
    ends: tuple[int, ...]
    kinds: tuple[Experience, ...]

    def __len__(self) -> int:
        return count_steps(self.ends)

    @property
    def _steps(self) -> Any:
        """The rows that are steps."""
        return slice(0, self.ends[0]) if len(self.ends) == 1 else self._steps_of_all

    @cached_property
    def _steps_of_all(self) -> Array:
        """The rows that are steps, where there are several episodes."""
        return np.delete(np.arange(self.ends[-1]), self.ends[:-1])

    @cached_property
    def agents(self) -> dict[AgentId, Experience]:
        """The steps of each agent."""
        return {
            agent: kind.map(lambda part, j=j: part[self._steps, j], (agent,))
            for kind in self.kinds
            for j, agent in enumerate(kind.agents)
        }

    def last_observations_of(self, agent: AgentId) -> Any:
        """Return an agent's observation after the last step of each episode."""
        kind = next(kind for kind in self.kinds if agent in kind.agents)
        j = kind.agents.index(agent)
        return map_state(lambda part: part[list(self.ends), j], kind.observations)

    @property
    def _only(self) -> Experience:
        if len(self.agents) > 1:
            names = ", ".join(self.agents)
            raise AttributeError(f"this rollout has several agents: use rollout.agents[name], with one of {names}")
        return next(iter(self.agents.values()))

    @property
    def observations(self) -> Any:
        return self._only.observations

    @property
    def actions(self) -> Any:
        return self._only.actions

    @property
    def rewards(self) -> Array:
        return self._only.rewards

    @property
    def terminated(self) -> Array:
        return self._only.terminated

    @property
    def truncated(self) -> Array:
        return self._only.truncated

    @property
    def says(self) -> Mapping[str, Any]:
        return self._only.says

    @property
    def last_observations(self) -> Any:
        return self.last_observations_of(next(iter(self.agents)))

    @property
    def returns(self) -> dict[AgentId, float]:
        """The sum of each agent's rewards."""
        steps = self._steps
        return {
            agent: float(kind.rewards[steps, j].sum()) for kind in self.kinds for j, agent in enumerate(kind.agents)
        }

    @property
    def episodes(self) -> list[slice]:
        """The steps of each episode."""
        lasts = [end - number for number, end in enumerate(self.ends)]
        return [slice(first, last) for first, last in zip((0, *lasts), lasts, strict=False)]

    def digest(self) -> str:
        """Return a sha256 of all that it holds, the same wherever and however it was collected."""
        found = hashlib.sha256(repr((self.index, self.seed, self.task, self.ends)).encode())
        for kind in self.kinds:
            found.update(repr(kind.agents).encode())
            for name in COLUMNS:
                found.update(name.encode())
                _add(found, getattr(kind, name))
        return found.hexdigest()


def count_steps(ends: Sequence[int]) -> int:
    """Return how many steps a rollout has whose last observations lie in these rows."""
    return ends[-1] - len(ends) + 1


def _add(found: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        found.update(f"{value.dtype.str}{value.shape}".encode())
        found.update(repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).data)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            found.update(repr(key).encode())
            _add(found, part)
    else:
        for part in value:
            _add(found, part)
