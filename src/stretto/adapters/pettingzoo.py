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


class _PastWrappers:
    """Steps a game by the `step` of PettingZoo's conversion, which takes this for the wrapped game.

    An action that one of the wrappers refuses goes through them all.
    """

    __slots__ = ("_checks", "_env", "_step", "aec_env", "agents")

    def __init__(self, env: Any, game: Any, *, checks: bool) -> None:
        self._env, self._step, self._checks = env, type(env).step, checks
        self.aec_env, self.agents = game, game.agents

    def __call__(self, actions: dict[AgentId, Action]) -> Any:
        space_of = self.aec_env.action_space
        if not actions or (self._checks and not all(space_of(agent).contains(actions[agent]) for agent in actions)):
            return self._env.step(actions)
        result = self._step(self, actions)
        self._env.agents = self.agents
        return result


def _past_wrappers(env: Any) -> Callable[[dict[AgentId, Action]], Any]:
    """Return what does the same as `env.step`, once `env` was reset.

    Every look at what a game has passes through two wrappers, and a step takes 45 of them: a quarter of a step of
    simple_spread. One of them has nothing to do after a reset, and the other looks at actions.
    """
    conversions = sys.modules.get("pettingzoo.utils.conversions")
    wrappers = sys.modules.get("pettingzoo.utils.wrappers")
    if conversions is None or wrappers is None or type(env) is not conversions.aec_to_parallel_wrapper:
        return env.step  # type: ignore[no-any-return]
    game, checks = env.aec_env, False
    while type(game) in (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper) and "step" not in vars(
        game
    ):
        checks |= type(game) is wrappers.AssertOutOfBoundsWrapper
        game = game.env
    own_last = getattr(type(game), "last", None) is not wrappers.BaseWrapper.last
    if game is env.aec_env or own_last or "step" in vars(env):
        return env.step  # type: ignore[no-any-return]
    return _PastWrappers(env, game, checks=checks)
