"""PettingZoo's parallel environments by agent: everybody who is left can act."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.adapters.base import AgentRules, NativeWorld, actions_of, refuse
from stretto.core import Action, AgentId, Observation, Outcome

__calls_user_code__ = True


class ParallelAgents(NativeWorld):
    """A parallel environment, by agent."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, getattr(env, "unwrapped", env))
        self._rules = AgentRules(env)
        self._step: Callable[[dict[AgentId, Action]], Any] = env.step

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        # An environment may have other defaults, and need not know both words.
        keywords = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
        observations, infos = self.native.reset(**keywords)
        self._step = _past_wrappers(self.native)
        acting = tuple(self.native.agents)
        return Outcome(self._seen(observations, acting, ()), {}, {}, {}, _by_agent(infos), acting)

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        here = tuple(self.native.agents)
        self._rules.expect(here)
        observations, *given, infos = self._step(actions_of(here, actions))
        rewards, terminated, truncated = self._rules.checked(*given)
        acting = tuple(self.native.agents)
        ended = () if acting == here else [agent for agent in here if terminated[agent] or truncated[agent]]
        return Outcome(
            self._seen(observations, acting, ended), rewards, terminated, truncated, _by_agent(infos), acting
        )

    def _seen(
        self, observations: Mapping[AgentId, Observation], acting: tuple[AgentId, ...], ended: Sequence[AgentId]
    ) -> Mapping[AgentId, Observation]:
        """Return what those see who are left and those who just ended; some environments go on to show the dead."""
        self._rules.expect(acting)
        for agent in acting:
            if agent not in observations:
                refuse(agent, "must be observed as long as it lives", sorted(observations))
        if len(observations) == len(acting):
            return observations
        return {agent: seen for agent, seen in observations.items() if agent in acting or agent in ended}


def _by_agent(infos: Any) -> dict[AgentId, dict[str, Any]]:
    return infos if isinstance(infos, dict) else {}


# ---- games in turns that PettingZoo shows as parallel environments ----


class _Past:
    """What PettingZoo's conversion steps in place of all wrappers around a game: the game itself."""

    __slots__ = ("aec_env", "agents")

    def __init__(self, aec_env: Any) -> None:
        self.aec_env, self.agents = aec_env, aec_env.agents


def _past_wrappers(env: Any) -> Callable[[dict[AgentId, Action]], Any]:
    """Return what does the same as `env.step`, once `env` was reset.

    Every look at what a game has passes through two wrappers, and a step takes 45 of them: a quarter of a step of
    simple_spread. One of them has nothing to do after a reset, and the other looks at actions.
    """
    conversions = sys.modules.get("pettingzoo.utils.conversions")
    wrappers = sys.modules.get("pettingzoo.utils.wrappers")
    if conversions is None or wrappers is None or type(env) is not conversions.aec_to_parallel_wrapper:
        return env.step  # type: ignore[no-any-return]
    game = env.aec_env
    checks = False
    while type(game) in (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper):
        if "step" in vars(game):
            break
        checks |= type(game) is wrappers.AssertOutOfBoundsWrapper
        game = game.env
    own_last = getattr(type(game), "last", None) is not getattr(wrappers.BaseWrapper, "last", None)
    if game is env.aec_env or own_last or "step" in vars(env):
        return env.step  # type: ignore[no-any-return]
    return _stepper(env, _Past(game), type(env).step, game.action_space if checks else None)


def _stepper(
    env: Any,
    past: _Past,
    step: Callable[[Any, dict[AgentId, Action]], Any],
    space_of: Callable[[AgentId], Any] | None,
) -> Callable[[dict[AgentId, Action]], Any]:
    """Return what steps a game by the conversion's own `step`; actions that are refused go through the wrappers."""

    def stepped(actions: dict[AgentId, Action]) -> Any:
        if not actions:
            return env.step(actions)
        if space_of is not None:
            for agent, action in actions.items():
                if not space_of(agent).contains(action):
                    return env.step(actions)
        result = step(past, actions)
        env.agents = past.agents
        return result

    return stepped
