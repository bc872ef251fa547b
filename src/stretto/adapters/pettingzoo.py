"""PettingZoo's parallel environments by agent: everybody who is left can act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.adapters.base import AgentRules, NativeWorld, actions_of, refuse
from stretto.core import Action, AgentId, Observation, Outcome

__calls_user_code__ = True


class ParallelAgents(NativeWorld):
    """A parallel environment, by agent."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, getattr(env, "unwrapped", env))
        self._rules = AgentRules(env)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        # An environment may have other defaults, and need not know both words.
        keywords = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
        observations, infos = self.native.reset(**keywords)
        acting = tuple(self.native.agents)
        return Outcome(self._seen(observations, acting, ()), {}, {}, {}, _by_agent(infos), acting)

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        here = tuple(self.native.agents)
        self._rules.expect(here)
        observations, *given, infos = self.native.step(actions_of(here, actions))
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
