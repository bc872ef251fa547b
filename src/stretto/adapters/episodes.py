"""Any world as a series of episodes by agent: what a rollout plays, whoever made the world."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np

from stretto.core import Action, AgentId, Observation, TurnWorld, WorldSpec
from stretto.errors import UsageError

__calls_user_code__ = True

ONLY_AGENT = "agent_0"
"""What the agent of a world with just one is called."""


@dataclass(slots=True)
class Outcome:
    """What a step gave: rewards of those who acted, and the observations of those who act next (none: it is over)."""

    observations: dict[AgentId, Observation]
    rewards: dict[AgentId, float]


class EpisodeWorld(Protocol):
    """A world with episodes, observed and acted on by agent."""

    def spec(self) -> WorldSpec:
        """Say who acts, what they see and what they can do."""

    def reset(self, seed: int, options: dict[str, Any] | None = None) -> dict[AgentId, Observation]:
        """Begin an episode; return the observations of those who act first."""

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        """Let everybody act who was observed."""

    def statistics(self) -> dict[str, float]:
        """Return the numbers by which the world describes its episode, if it has any."""

    def render(self) -> Any:
        """Return what the world's own `render` returns."""

    def close(self) -> None:
        """Let go of the world."""


def as_episodes(env: Any) -> EpisodeWorld:
    """Return any world that we know how to play as one with episodes by agent."""
    if isinstance(env, gymnasium.Env):
        return _OneAgent(env)
    if isinstance(env, TurnWorld):
        return _Turns(env)
    if hasattr(env, "possible_agents") and hasattr(env, "step") and not hasattr(env, "agent_iter"):
        return _Parallel(env)
    if hasattr(env, "begin_turn"):
        members = {name for name in (*TurnWorld.__annotations__, *vars(TurnWorld)) if not name.startswith("_")}
        missing = ", ".join(sorted(name for name in members if not hasattr(env, name)))
        raise UsageError(
            f"a TurnWorld must have all of its members from the start, and {type(env).__name__} lacks {missing}"
        )
    raise UsageError(
        f"a mission must make a gymnasium.Env, a PettingZoo parallel environment or a TurnWorld, got {type(env).__name__}"
    )


_IMMUTABLE = (int, float, complex, str, bytes, type(None), np.number, np.bool_)


def own_copy(value: Any) -> Any:
    """Return an observation or an action for somebody who may keep it and change it: its arrays are copies.

    These are always in C order: the last bits of what is computed from an array may depend on its layout.
    """
    kind = type(value)
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if isinstance(value, _IMMUTABLE):
        return value
    if kind is dict or kind is OrderedDict:
        return kind((key, own_copy(part)) for key, part in value.items())
    if kind is tuple or kind is list:
        return kind(map(own_copy, value))
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return kind._make(map(own_copy, value))
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  what cannot be copied cannot be sent elsewhere either: everybody has the same
        return value


class _World:
    """What is the same for all kinds: `unwrapped` is the world inside of all wrappers."""

    def __init__(self, env: Any, unwrapped: Any) -> None:
        self._env, self._unwrapped = env, unwrapped

    def statistics(self) -> dict[str, float]:
        offered = getattr(self._unwrapped, "statistics", None)
        return {str(name): float(value) for name, value in offered().items()} if callable(offered) else {}

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


class _OneAgent(_World):
    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env, env.unwrapped)

    def spec(self) -> WorldSpec:
        env = self._env
        names = tuple(getattr(self._unwrapped, "action_names", ()))
        return WorldSpec(
            (ONLY_AGENT,),
            {ONLY_AGENT: env.observation_space},
            {ONLY_AGENT: env.action_space},
            names,
            _facts(self._unwrapped),
        )

    def reset(self, seed: int, options: dict[str, Any] | None = None) -> dict[AgentId, Observation]:
        return {ONLY_AGENT: self._env.reset(seed=seed, options=options)[0]}

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        observation, reward, terminated, truncated, _ = self._env.step(actions[ONLY_AGENT])
        next_up = {} if terminated or truncated else {ONLY_AGENT: observation}
        return Outcome(next_up, {ONLY_AGENT: float(reward)})


class _Parallel(_World):
    def __init__(self, env: Any) -> None:
        super().__init__(env, env.unwrapped)

    def spec(self) -> WorldSpec:
        return _spec_of(self._env, self._unwrapped)

    def reset(self, seed: int, options: dict[str, Any] | None = None) -> dict[AgentId, Observation]:
        observations, _ = self._env.reset(seed=seed, options=options)
        return {agent: observations[agent] for agent in self._env.agents}

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        observations, rewards, _, _, _ = self._env.step(dict(actions))
        acting = {agent: observations[agent] for agent in self._env.agents}
        return Outcome(acting, {agent: float(reward) for agent, reward in rewards.items()})


class _Turns(_World):
    """All observe, then all act, in the order of the world's agents."""

    def __init__(self, world: TurnWorld) -> None:
        super().__init__(world, world)
        self._world = world

    def spec(self) -> WorldSpec:
        return _spec_of(self._world, self._world)

    def reset(self, seed: int, options: dict[str, Any] | None = None) -> dict[AgentId, Observation]:
        self._world.reset(seed, options)
        return self._begin({})

    def _begin(self, rewards: dict[AgentId, float]) -> dict[AgentId, Observation]:
        """Begin turns until somebody can act in one; what is earned meanwhile is added to `rewards`."""
        world = self._world
        while world.agents:
            world.begin_turn()
            acting = {agent: world.observe(agent) for agent in world.agents if world.can_act(agent)}
            if acting:
                return acting
            for agent, reward in world.end_turn().rewards.items():
                rewards[agent] = rewards.get(agent, 0.0) + float(reward)
        return {}

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        world = self._world
        for agent in list(world.agents):
            if agent in actions and world.can_act(agent):
                world.act(agent, actions[agent])
        rewards = {agent: float(reward) for agent, reward in world.end_turn().rewards.items()}
        return Outcome(self._begin(rewards), rewards)


def _spec_of(env: Any, world: Any) -> WorldSpec:
    """Describe a world with several agents; `world` is what is inside of all wrappers."""
    agents = tuple(env.possible_agents)
    return WorldSpec(
        agents,
        {agent: env.observation_space(agent) for agent in agents},
        {agent: env.action_space(agent) for agent in agents},
        tuple(getattr(world, "action_names", ())),
        _facts(world),
    )


def _facts(world: Any) -> dict[str, Any]:
    return dict(getattr(world, "facts", None) or {})
