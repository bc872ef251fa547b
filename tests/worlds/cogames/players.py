"""Policies as users of cogames write them."""

from __future__ import annotations

import random

import numpy as np
from mettagrid.policy.policy import AgentPolicy, MultiAgentPolicy
from mettagrid.types import Action


class _Alone(AgentPolicy):
    def __init__(self, info, choose):
        super().__init__(info)
        self._choose = choose

    def step(self, obs):
        return Action(name=self._choose(obs))

    def reset(self, simulation=None):
        pass


class Counting(MultiAgentPolicy):
    """Keeps its agents, as cogames' own scripted policies do; one walks on for as long as it has lived."""

    def __init__(self, policy_env_info, device="cpu"):
        super().__init__(policy_env_info)
        self._agents = {}

    def agent_policy(self, agent_id):
        if agent_id not in self._agents:
            count = iter(range(1 << 30))
            names = self.policy_env_info.action_names
            self._agents[agent_id] = _Alone(self.policy_env_info, lambda _: names[(next(count) // 7) % len(names)])
        return self._agents[agent_id]


class Clockwork(MultiAgentPolicy):
    """Draws from generators that were seeded by the clock: numpy's, Python's, and the global one."""

    def agent_policy(self, agent_id):
        agent = _Alone(self.policy_env_info, None)
        agent.rng, agent.dice = np.random.default_rng(), random.Random()
        names = self.policy_env_info.action_names
        agent._choose = lambda _: names[(agent.rng.integers(99) + agent.dice.randrange(99) + random.randrange(99)) % 5]
        return agent


class Looking(MultiAgentPolicy):
    """Looks at every token, and acts on all of them."""

    def agent_policy(self, agent_id):
        names = self.policy_env_info.action_names

        def choose(obs):
            total = sum(token.value + sum(token.location or (0, 0)) + token.feature.id for token in obs.tokens)
            return names[(total + len(obs.tokens) + obs.agent_id) % len(names)]

        return _Alone(self.policy_env_info, choose)


class Rows(MultiAgentPolicy):
    """Acts on mettagrid's arrays; asked by itself, an agent does what it does in a row."""

    def _choose(self, seen):
        return (seen.astype(np.int64).sum(axis=(1, 2)) // 7) % len(self.policy_env_info.action_names)

    def step_batch(self, raw_observations, raw_actions):
        assert raw_observations.dtype == np.uint8
        raw_actions[:] = self._choose(raw_observations)

    def agent_policy(self, agent_id):
        shape, names = self.policy_env_info.observation_shape, self.policy_env_info.action_names

        def choose(obs):
            seen = np.full(shape, 255, np.uint8)
            for row, token in enumerate(obs.tokens):
                seen[row] = token.raw_token
            return names[self._choose(seen[None])[0]]

        return _Alone(self.policy_env_info, choose)


class CountingRows(Rows):
    """Keeps something from call to call, so that its rows cannot be asked in any order."""

    calls = 0

    def step_batch(self, raw_observations, raw_actions):
        self.calls += 1
        raw_actions[:] = self.calls % 5


class Vibing(MultiAgentPolicy):
    """Walks and changes its vibe at once, or only changes its vibe."""

    def agent_policy(self, agent_id):
        info, count = self.policy_env_info, iter(range(1 << 30))
        agent = AgentPolicy(info)

        def step(obs):
            n = next(count)
            vibe = info.vibe_action_names[n % len(info.vibe_action_names)]
            return Action(name=vibe) if n % 3 else Action(name=info.action_names[n % 5], vibe=vibe)

        agent.step, agent.reset = step, lambda: None
        return agent
