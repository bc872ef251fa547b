"""PettingZoo's AEC games by agent: a step is the move of the agent whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.adapters.base import AgentRules, NativeWorld, Sights, actions_of, refuse
from stretto.core import Action, AgentId, Observation, Outcome

__calls_user_code__ = True


class AecAgents(NativeWorld):
    """A game in which agents move one after the other, by agent.

    The game asks each agent that is over for one last, empty move. That is when it ends here, so that it has all that it
    earned. Nobody chooses that move: it belongs to the step before.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env, getattr(env, "unwrapped", env))
        self._rules = AgentRules(env)
        self._unseen: list[AgentId] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        # A game may have other defaults, and need not know both words.
        keywords = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
        self.native.reset(**keywords)
        self._rules.expect(tuple(self.native.agents))
        return self._outcome(Outcome({}, {}, {}, {}, dict(self.native.infos), ()))

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        env = self.native
        here, agent = tuple(env.agents), env.agent_selection
        self._rules.expect(here)
        env.step(actions_of((agent,), actions)[agent])
        rewards, infos = dict(env.rewards), dict(env.infos)
        terminated, truncated = dict.fromkeys(here, False), dict.fromkeys(here, False)
        last: dict[AgentId, Observation] = {}
        while (over := self._whose_turn()) is not None and (env.terminations[over] or env.truncations[over]):
            last[over] = env.observe(over)
            terminated[over], truncated[over] = env.terminations[over], env.truncations[over]
            env.step(None)
            if over in env.agents:
                refuse(over, "must be gone after its last, empty move", f"it in agents, {env.agents}")
        return self._outcome(Outcome(last, *self._rules.checked(rewards, terminated, truncated), infos, ()))

    def _whose_turn(self) -> AgentId | None:
        """Return who moves next; nobody if the game is over."""
        return self.native.agent_selection if self.native.agents else None

    def _outcome(self, given: Outcome) -> Outcome:
        """Return what was given, with what everybody sees now who is left."""
        env, agent = self.native, self._whose_turn()
        self._unseen.clear()
        if agent is None:
            return given
        self._unseen = [one for one in env.agents if one != agent]
        given.observations = Sights(env.observe, {**given.observations, agent: env.observe(agent)}, self._unseen)
        given.acting = (agent,)
        return given
