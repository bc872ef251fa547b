"""A game in turns as a PettingZoo parallel environment, for libraries that take nothing else.

    from stretto.games.foundry import Foundry
    from stretto.interop.pettingzoo import ParallelTurns

    env = ParallelTurns(Foundry(cogs=4))

Stretto itself needs no such wrapper: `make_vec` and `evaluate` take the game as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.adapters.turns import TurnAgents
from stretto.core import Action, AgentId, Observation, TurnWorld, WorldStatistics

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ImportError("stretto.interop.pettingzoo needs PettingZoo: pip install 'stretto[pettingzoo]'") from error

_Observations = dict[AgentId, Observation]
_Flags = dict[AgentId, bool]
_Infos = dict[AgentId, dict[str, Any]]


class ParallelTurns(ParallelEnv):  # type: ignore[misc]  # PettingZoo publishes no types
    """Any game in turns as a parallel environment: all agents observe, and then all act, in the order of `agents`.

    Observed are all who are left, and once more those whose episode ended. The action of an agent that cannot act is
    ignored, and may be left out. Turns in which nobody can act are skipped, as everywhere (see `stretto.core.AgentWorld`).
    """

    def __init__(self, turn_world: TurnWorld) -> None:
        self.turn_world, self._world = turn_world, TurnAgents(turn_world)
        self.possible_agents = list(turn_world.possible_agents)
        self.metadata = {"name": "parallel_turns", **turn_world.metadata, "is_parallelizable": True}
        self.render_mode = turn_world.render_mode

    @property
    def agents(self) -> list[AgentId]:
        """Those whose episode goes on, in the order in which they act."""
        return list(self.turn_world.agents)

    @property
    def np_random(self) -> np.random.Generator | None:
        """The stream that the game draws from, if it has one; whoever restores a game reads and sets it."""
        return self._world.np_random

    @np_random.setter
    def np_random(self, generator: np.random.Generator) -> None:
        self._world.np_random = generator

    def observation_space(self, agent: AgentId) -> spaces.Space[Any]:
        return self.turn_world.observation_space(agent)

    def action_space(self, agent: AgentId) -> spaces.Space[Any]:
        return self.turn_world.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[_Observations, _Infos]:
        outcome = self._world.reset(seed, options)
        return dict(outcome.observations), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[AgentId, Action]
    ) -> tuple[_Observations, dict[AgentId, float], _Flags, _Flags, _Infos]:
        outcome = self._world.step(actions)
        return dict(outcome.observations), outcome.rewards, outcome.terminated, outcome.truncated, outcome.infos

    def statistics(self) -> WorldStatistics:
        """Return the numbers that the game offers about its episode so far; none if it offers none."""
        return self._world.statistics()

    def render(self) -> Any:
        return self.turn_world.render()

    def close(self) -> None:
        self.turn_world.close()
