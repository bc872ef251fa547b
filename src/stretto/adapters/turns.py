"""Games in turns, played at once: the face of a PettingZoo parallel environment, without PettingZoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.core import Action, AgentId, Observation, TurnWorld
from stretto.errors import UsageError

Observations = dict[AgentId, Observation]
Infos = dict[AgentId, dict[str, Any]]
Flags = dict[AgentId, bool]


class ParallelTurns:
    """Any game in turns as a parallel environment: all agents observe, and then all act, in the order of `agents`.

    A step lets the agents act, closes the turn and begins the next one, so that what is observed is what the next
    actions are chosen for. Agents whose episode ended are observed once more, as the turn left them. The action of an
    agent that cannot act in a turn is ignored, and may be left out.
    """

    def __init__(self, turn_world: TurnWorld) -> None:
        self.turn_world = turn_world
        self.possible_agents: list[AgentId] = list(turn_world.possible_agents)
        self.metadata: dict[str, Any] = {"name": "parallel_turns", **turn_world.metadata, "is_parallelizable": True}
        self.render_mode = turn_world.render_mode

    @property
    def agents(self) -> list[AgentId]:
        """Those whose episode goes on, in the order in which they act."""
        return list(self.turn_world.agents)

    @property
    def num_agents(self) -> int:
        """How many agents are left."""
        return len(self.turn_world.agents)

    @property
    def max_num_agents(self) -> int:
        """How many agents there may be."""
        return len(self.possible_agents)

    @property
    def unwrapped(self) -> ParallelTurns:
        """This environment: there is no other one inside."""
        return self

    @property
    def np_random(self) -> np.random.Generator | None:
        """The stream that the game draws from, if it has one; whoever restores a game reads and sets it."""
        return getattr(self.turn_world, "_np_random", None)

    @np_random.setter
    def np_random(self, generator: np.random.Generator) -> None:
        self.turn_world._np_random = generator  # type: ignore[attr-defined]  # noqa: SLF001  as Gymnasium names it

    def observation_space(self, agent: AgentId) -> spaces.Space[Any]:
        """The space of what an agent observes."""
        return self.turn_world.observation_space(agent)

    def action_space(self, agent: AgentId) -> spaces.Space[Any]:
        """The space of what an agent may do."""
        return self.turn_world.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observations, Infos]:
        """Begin an episode and its first turn; without a seed, go on with the stream of the one before."""
        world = self.turn_world
        world.reset(seed, options)
        world.begin_turn()
        return {agent: world.observe(agent) for agent in world.agents}, {agent: {} for agent in world.agents}

    def step(self, actions: Mapping[AgentId, Action]) -> tuple[Observations, dict[AgentId, float], Flags, Flags, Infos]:
        """Let all agents act, and return what the turn gave and what they see before the next one."""
        world = self.turn_world
        for agent in list(world.agents):
            if world.can_act(agent):
                if agent not in actions:
                    raise UsageError(
                        f"each agent that can act must have an action, got none for {agent!r}; pass one for each of agents"
                    )
                world.act(agent, actions[agent])
        end = world.end_turn()
        living = set(world.agents)
        seen = {agent: world.observe(agent) for agent in end.rewards if agent not in living}
        if world.agents:
            world.begin_turn()
            seen.update((agent, world.observe(agent)) for agent in world.agents)
        return seen, end.rewards, end.terminated, end.truncated, end.infos

    def statistics(self) -> dict[str, float]:
        """Return the numbers that the game offers about its episode so far; none if it offers none."""
        offered = getattr(self.turn_world, "statistics", None)
        return {} if offered is None else dict(offered())

    def render(self) -> Any:
        """Return a picture of the game."""
        return self.turn_world.render()

    def close(self) -> None:
        """Let go of everything; may be called twice."""
        self.turn_world.close()

    def __repr__(self) -> str:
        return f"ParallelTurns({type(self.turn_world).__name__})"
