"""NetworkPolicy: a network that somebody else made, as a policy: batches of observations in, actions or scores out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from stretto.core import Action, AgentId, AgentPolicy, MultiAgentPolicy, Observation, WorldSpec
from stretto.errors import UsageError
from stretto.policies.masks import MaskedChoices, counted_action
from stretto.spaces import Array, same_space


class NetworkAgent(AgentPolicy):
    """An agent that acts by a network; `state` is what the network remembers of it, in the rows of arrays."""

    def __init__(self, agent: AgentId, kind: int) -> None:
        self.agent, self.kind = agent, kind
        self.state: Any = None


class NetworkPolicy(MultiAgentPolicy):
    """A network that all agents act by, in batches.

    What comes out may be actions. Where actions can be counted, it may also be a score for each action: the best one that
    the action mask allows is taken. Numbers for a Box are kept within its bounds.
    """

    def __init__(self, world: WorldSpec) -> None:
        super().__init__(world)
        self._kind_of: dict[AgentId, int] = {}
        self._readers: list[ActionReader] = []
        for agent in world.agents:
            reader = ActionReader(world.observation_spaces[agent], world.action_spaces[agent])
            same = (i for i, one in enumerate(self._readers) if one.same_as(reader))
            self._kind_of[agent] = kind = next(same, len(self._readers))
            if kind == len(self._readers):
                self._readers.append(reader)

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        return NetworkAgent(agent, self._kind_of[agent])

    def step_batch(self, agent_policies: Sequence[NetworkAgent], observations: Sequence[Observation]) -> list[Action]:
        """Choose for many agents at once, kind by kind."""
        actions: list[Action] = [None] * len(agent_policies)
        for kind, reader in enumerate(self._readers):
            places = [i for i, one in enumerate(agent_policies) if one.kind == kind]
            if not places:
                continue
            seen = [observations[i] for i in places]
            outputs = self.compute(reader.batch(seen), [agent_policies[i] for i in places])
            for i, action in zip(places, reader.actions(np.asarray(outputs), seen), strict=True):
                actions[i] = action
        return actions

    def compute(self, observations: Any, agents: Sequence[NetworkAgent]) -> Array:
        """Return what the network makes of a batch of observations: a row for each agent."""
        raise NotImplementedError


class ActionReader:
    """Puts observations of one kind of agents together, and reads actions from what a network makes of them."""

    def __init__(self, seen: spaces.Space[Any], acted: spaces.Space[Any]) -> None:
        self.seen, self.acted = seen, acted
        self._choices = MaskedChoices.of(seen, acted)
        if not isinstance(acted, tuple(_READ)):
            names = ", ".join(kind.__name__ for kind in _READ)
            raise UsageError(
                f"a network from elsewhere acts in spaces of the kinds {names}, got {acted}; wrap the world"
            )

    def same_as(self, other: ActionReader) -> bool:
        """Whether agents of both have the same spaces."""
        return same_space(self.seen, other.seen) and same_space(self.acted, other.acted)

    def batch(self, observations: Sequence[Observation]) -> Any:
        """Return observations as arrays with a leading axis."""
        empty: Any = create_empty_array(self.seen, len(observations))
        return concatenate(self.seen, list(observations), empty)

    def actions(self, outputs: Array, observations: Sequence[Observation]) -> list[Action]:
        """Return the action of each row."""
        if len(outputs) != len(observations):
            raise UsageError(
                f"a network must return a row for each of {len(observations)} observations, got shape {outputs.shape}"
            )
        if scores := self._scored(outputs):
            return [self._best(scores, row, one) for row, one in zip(outputs, observations, strict=True)]
        read = next(read for kind, read in _READ.items() if isinstance(self.acted, kind))
        return [read(self.acted, row) for row in outputs]

    def _scored(self, outputs: Array) -> list[int]:
        """Return the numbers of actions of each choice, if the outputs are a score for each action."""
        if isinstance(self.acted, spaces.Discrete):
            sizes = [int(self.acted.n)]
        elif isinstance(self.acted, spaces.MultiDiscrete):
            sizes = self.acted.nvec.reshape(-1).tolist()
        else:
            return []
        return sizes if outputs.shape[1:] == (sum(sizes),) and sum(sizes) > len(sizes) else []

    def _best(self, sizes: Sequence[int], scores: Array, observation: Observation) -> Action:
        allowed = [np.arange(size) for size in sizes] if self._choices is None else self._choices.allowed(observation)
        picked, first = [], 0
        for size, mine in zip(sizes, allowed, strict=True):
            picked.append(int(mine[np.argmax(scores[first + mine])]))
            first += size
        return counted_action(self.acted, picked)


def _one(space: Any, row: Array) -> Action:
    if row.size != 1:
        raise UsageError(
            f"for {space} a network must return an action or {space.n} scores a row, got a row of shape {row.shape}"
        )
    return space.dtype.type(row.reshape(-1)[0])


def _several(space: Any, row: Array) -> Action:
    _check_size(space, row)
    return row.reshape(space.shape).astype(space.dtype)


def _bits(space: Any, row: Array) -> Action:
    _check_size(space, row)
    return (row.reshape(space.shape) > 0.5).astype(space.dtype)


def _numbers(space: Any, row: Array) -> Action:
    _check_size(space, row)
    return np.clip(row.reshape(space.shape).astype(space.dtype), space.low, space.high)


def _check_size(space: Any, row: Array) -> None:
    if row.size != int(np.prod(space.shape)):
        raise UsageError(f"for {space} a network must return rows of that shape, got a row of shape {row.shape}")


_READ: Mapping[type[spaces.Space[Any]], Callable[[Any, Array], Action]] = {
    spaces.Discrete: _one,
    spaces.MultiDiscrete: _several,
    spaces.MultiBinary: _bits,
    spaces.Box: _numbers,
}
