"""TurnBlocks: a game in sequential turns as a `gymnasium.Env` that goes on until an agent has to be asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.adapters.blocks import AgentBlocks
from stretto.adapters.turns import Tentative
from stretto.core import Action, AgentId, AgentWorld, Observation, Outcome
from stretto.spaces import Array

NOTHING, CHOSEN, FOR_GOOD = range(3)
"""What is given for an agent: no action, one that was chosen on what it was shown, or one that counts whatever it sees."""


class TurnBlocks(AgentBlocks):
    """A game in sequential turns and the face of a single agent's world; a turn may take several steps.

    A step is given the actions of some agents. They are applied in order, until it is the turn of one that has no action, or
    that sees something else than when it was shown its observation; or until the turn is over. Then the observation says

    - `acting`: whose turn it is (nobody, if the episode is over);
    - `ahead`: who else may be asked now, because the turn begins, or because it sees something else than when it was asked;
    - `turned`: whether a turn is over. Then rewards and flags are those of the turn, and all agents see the beginning of the
      next one. Until the next turn is over, only what those see changes who are shown it again.
    - `acted`: who has acted in the turn that is over.

    The action has a last part, which says by agent what is given for it: see `NOTHING`.
    """

    def __init__(self, world: AgentWorld) -> None:
        super().__init__(world)
        seen: Any = self.observation_space
        done: Any = self.action_space
        count = len(self.agents)
        flags: spaces.Space[Any] = spaces.Box(0, 1, (count,), np.bool_)
        one: spaces.Space[Any] = spaces.Box(0, 1, (1,), np.bool_)
        self.observation_space = spaces.Dict({**seen.spaces, "ahead": flags, "acted": flags, "turned": one})
        self.action_space = spaces.Tuple([*done.spaces, spaces.Box(0, FOR_GOOD, (count,), np.uint8)])
        self._index = {agent: i for i, agent in enumerate(self.agents)}
        self._places = {
            agent: (block, j)
            for kind, (_, block) in zip(self.kinds, self._blocks, strict=True)
            for j, agent in enumerate(kind.agents)
        }
        self._ahead, self._acted, self._turned = (np.zeros(size, np.bool_) for size in (count, count, 1))
        self._tentative: Tentative[Action] = Tentative()
        self._shown: dict[AgentId, Observation] = {}
        self._now: Outcome

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._ended_at_once is not None:
            return self._result(self._ended_at_once)
        *blocks, given = action
        binding = self._take(self._by_agent(tuple(blocks)), given.tolist())
        outcome, tentative = self._now, self._tentative
        while True:
            (agent,) = outcome.acting
            if agent not in binding and not tentative.stands(agent, outcome.observations[agent]):
                self._now = outcome
                return self._paused(agent), 0.0, False, False, {}
            outcome = self.world.step({agent: tentative.take(agent)})
            self._done.append(agent)
            if outcome.ahead is not None or not outcome.acting:
                return self._result(outcome)

    def _result(self, outcome: Outcome) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return what a turn gave that is over."""
        infos = {agent: info for agent, info in outcome.infos.items() if info}
        self._set(self._acted, self._done)
        return self._value(outcome), 0.0, not outcome.acting, False, infos

    def _take(self, actions: dict[AgentId, Action], given: list[int]) -> set[AgentId]:
        """Take actions that are given; return the agents whose action counts whatever they see."""
        binding = set()
        for agent, how in zip(self.agents, given, strict=True):
            if how != NOTHING and (how == FOR_GOOD or agent in self._shown):
                self._tentative.keep(agent, self._shown.get(agent), actions[agent])
                if how == FOR_GOOD:
                    binding.add(agent)
        return binding

    def _value(self, outcome: Outcome) -> dict[str, Any]:
        """Write all that an outcome has with which a turn begins, or with which the episode ends."""
        self._now, self._done = outcome, list[AgentId]()
        self._tentative.end()
        value = super()._value(outcome)
        askable = (*outcome.acting, *(outcome.ahead or ()))
        self._shown = {agent: outcome.observations[agent] for agent in askable}
        self._set(self._ahead, outcome.ahead or ())
        self._turned[0] = True
        return {**value, "ahead": self._ahead, "acted": self._acted, "turned": self._turned}

    def _paused(self, due: AgentId) -> dict[str, Any]:
        """Write what those see now whose choices do not stand, in the middle of a turn."""
        observations = self._now.observations
        fallen = [agent for agent in self._tentative.fallen(observations) if agent != due]
        self._tentative.drop([due, *fallen])
        for agent in (due, *fallen):
            self._shown[agent] = observations[agent]
            block, j = self._places[agent]
            block.write([(j, observations[agent])])
        self._reward[:] = 0.0
        self._terminated[:] = self._truncated[:] = self._acted[:] = False
        self._set(self._acting, [due])
        self._set(self._ahead, fallen)
        self._turned[0] = self._flagged = False
        self._last_acting = ()  # so that the next outcome writes who is there
        return {**self._arrays(), "ahead": self._ahead, "acted": self._acted, "turned": self._turned}

    def _set(self, flags: Array, agents: Iterable[AgentId]) -> None:
        flags[:] = False
        for agent in agents:
            flags[self._index[agent]] = True


def by_turn(observation_space: spaces.Space[Any]) -> bool:
    """Whether worlds with this observation space are `TurnBlocks`."""
    return isinstance(observation_space, spaces.Dict) and "turned" in observation_space.spaces


def whole_turns(acted: Array) -> Array:
    """Return what is given where these agents have acted, and do so again whatever they see."""
    return acted.astype(np.uint8) * np.uint8(FOR_GOOD)
