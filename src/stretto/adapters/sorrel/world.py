"""An environment of Sorrel as a game in turns: in sequential turns each agent observes after the one before has acted."""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.adapters.sorrel.entity_copies import copy_faster
from stretto.adapters.sorrel.visual_field import see_faster
from stretto.core import Action, AgentId, Observation, TurnEnd
from stretto.errors import UsageError

__calls_user_code__ = True

_PLAIN = (bool, int, float, str, type(None))


def is_sorrel(env: Any) -> bool:
    """Whether this is an environment of Sorrel, or a class of such environments."""
    module = sys.modules.get("sorrel.environment")
    kind = env if isinstance(env, type) else type(env)
    return module is not None and issubclass(kind, module.Environment)


def in_turns(world: Any) -> Any:
    """Return an environment of Sorrel as a game in turns; other worlds are returned as they are."""
    return SorrelTurns(world) if is_sorrel(world) else world


def copied(source: Any) -> Any:
    """Return what copies an environment of Sorrel that is to be played; whatever else names a world is returned as it is."""
    return Copies(source) if is_sorrel(source) and not isinstance(source, type) else source


class Copies:
    """Makes copies of an environment, each a world of its own."""

    def __init__(self, env: Any) -> None:
        self._env, self.__module__, self.__name__ = env, type(env).__module__, type(env).__name__

    def __call__(self) -> Any:
        return copy.deepcopy(self._env)


def fresh(make: Callable[..., Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments for one world: each environment of Sorrel needs a grid of its own."""
    return copy.deepcopy(dict(kwargs)) if is_sorrel(make) else kwargs


def run_faster() -> None:
    """Let Sorrel see and copy in less time, with the same bits, in this process."""
    see_faster()
    copy_faster()


def begin_turn(env: Any) -> None:
    """Begin a turn as Sorrel does: let everything move that is no agent."""
    agent = sys.modules["sorrel.agents"].Agent
    env.turn += 1
    for entity in env.world.map.flat:  # as it is when it is their turn: what moves may change what comes later
        if entity.has_transitions and not isinstance(entity, agent):
            entity.transition(env.world)


def seed_globals(seed: int) -> None:
    """Seed the generators that Sorrel draws from, as its own `set_seed` does."""
    import torch

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  what Sorrel's worlds draw from
    torch.manual_seed(seed)


class SorrelTurns:
    """An environment of Sorrel as a `TurnWorld`; the agents' own models are not asked, and learn nothing.

    Entities that are no agents move in `begin_turn`. An episode is an epoch of Sorrel's: it is truncated after `max_turns`
    turns (`config.experiment.max_turns`, unless it is given), and terminated when the world is done, if the environment has
    `stop_if_done`. Agents see what their models get: the numbers of `pov`, flat, as float32; with `frames`, behind those that
    they saw when they acted the last `frames - 1` times, or zeros.

    A reset with a seed seeds what Sorrel draws from. Agents are then what they were when the environment was made. A reset
    without one goes on as Sorrel's next epoch does.

    Attributes:
        env: Sorrel's own object.
    """

    metadata: dict[str, Any] = {"render_modes": [], "name": "sorrel"}  # noqa: RUF012  as PettingZoo spells it
    render_mode: str | None = None

    def __init__(self, env: Any, max_turns: int | None = None, frames: int = 1) -> None:
        if frames < 1:
            raise UsageError(f"frames must be at least 1, got {frames}")
        self.env = env
        _check_order(env)
        run_faster()
        self.max_turns = _limit(env) if max_turns is None else max_turns
        self.possible_agents = [f"agent_{number}" for number in range(len(env.agents))]
        self.agents: list[AgentId] = []
        self._agent = dict(zip(self.possible_agents, env.agents, strict=True))
        self._observed = {name: _observation_space(name, self._look(name), frames) for name in self.possible_agents}
        self._frames, self._before = frames - 1, dict[AgentId, deque[Observation]]()
        self._seen: dict[AgentId, Observation] = {}
        self._actions = {name: spaces.Discrete(one.action_spec.n_actions) for name, one in self._agent.items()}
        self.action_names = _action_names(env.agents)
        self._rewards: dict[AgentId, float] = {}
        self._made = [_without(vars(one), "model", "observation_spec", "action_spec") for one in env.agents]
        self._made = copy.deepcopy(self._made)
        self._world = {name: value for name, value in vars(env.world).items() if isinstance(value, _PLAIN)}

    def observation_space(self, agent: AgentId) -> spaces.Space[Any]:
        return self._observed[agent]

    def action_space(self, agent: AgentId) -> spaces.Space[Any]:
        return self._actions[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            seed_globals(seed)
            for agent, made in zip(self.env.agents, copy.deepcopy(self._made), strict=True):
                vars(agent).update(made)
            vars(self.env.world).update(self._world)
        self.env.reset()
        self.agents = list(self.possible_agents)
        if self._frames:
            for name, space in self._observed.items():
                nothing = np.zeros(space.shape[0] // (self._frames + 1), np.float32)
                self._before[name] = deque([nothing] * self._frames, self._frames)

    def begin_turn(self) -> None:
        self._rewards = dict.fromkeys(self.agents, 0.0)
        begin_turn(self.env)

    def can_act(self, agent: AgentId) -> bool:
        return True

    def observe(self, agent: AgentId) -> Observation:
        seen = np.array(self._look(agent), np.float32).reshape(-1)
        if not self._frames:
            return seen
        self._seen[agent] = seen
        return np.concatenate([*self._before[agent], seen])

    def _look(self, agent: AgentId) -> Any:
        return self._agent[agent].pov(self.env.world)

    def act(self, agent: AgentId, action: Action) -> None:
        world, one = self.env.world, self._agent[agent]
        reward = one.act(world, int(action))
        one.is_done(world)
        world.total_reward += reward
        self._rewards[agent] = float(reward)
        if agent in self._seen:
            self._before[agent].append(self._seen.pop(agent))

    def end_turn(self) -> TurnEnd:
        env, here = self.env, self.agents
        terminated = bool(env.stop_if_done and env.world.is_done)
        truncated = not terminated and self.max_turns is not None and env.turn >= self.max_turns
        if terminated or truncated:
            env.world.is_done = True
            self.agents = []
        return TurnEnd(
            self._rewards,
            dict.fromkeys(here, terminated),
            dict.fromkeys(here, truncated),
            {agent: {} for agent in here},
        )

    def statistics(self) -> Mapping[str, float]:
        """Return the reward of all agents together, as Sorrel logs it."""
        return {"total_reward": float(self.env.world.total_reward)}

    def render(self) -> Any:
        return None

    def close(self) -> None:
        pass


def _check_order(env: Any) -> None:
    """Raise unless a turn is Sorrel's own: only then is it known where one agent's part ends and the next one's begins."""
    environment, agent = sys.modules["sorrel.environment"].Environment, sys.modules["sorrel.agents"].Agent
    own = [(type(env), "take_turn", environment), *((type(one), "transition", agent) for one in env.agents)]
    for kind, method, base in own:
        if getattr(kind, method) is not getattr(base, method):
            raise UsageError(
                f"a turn must be Sorrel's own to be played by agent, got {kind.__qualname__} with a {method} of its own; "
                f"stretto.interop.sorrel.ParallelEnvironment runs it as it is"
            )


def _limit(env: Any) -> int | None:
    limit = env.config.get("experiment", {}).get("max_turns")
    return None if limit is None else int(limit)


def _observation_space(name: AgentId, seen: Any, frames: int) -> spaces.Box:
    found = np.asarray(seen)
    if found.dtype.kind not in "biuf":
        raise UsageError(f"an agent must see numbers, got {seen!r:.60} from the pov of {name}")
    return spaces.Box(-np.inf, np.inf, (frames * found.size,), np.float32)


def _action_names(agents: list[Any]) -> tuple[str, ...]:
    """Return what the actions are called, if that is the same for all agents."""
    names = {tuple(one.action_spec.actions.values()) for one in agents}
    return names.pop() if len(names) == 1 else ()


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
