"""Whoever draws from global generators, and whenever: what is drawn belongs to the agent and its episode."""

from __future__ import annotations

import functools
import importlib.util
import random

import gymnasium
import numpy as np
import pytest

import stretto
from stretto.core import AgentPolicy, MultiAgentPolicy
from stretto.policies.spec import PolicySpec

WAYS = [
    {"jobs": 0, "strategy": "sequential"},
    {"jobs": 0, "strategy": "threads"},
    {"jobs": 0, "strategy": "processes"},
    {"jobs": 2, "strategy": "batched"},
    {"jobs": 2, "strategy": "processes", "parallel_policy": True},
]


class Late(MultiAgentPolicy):
    """Draws from the seventh step on: after everybody has looked."""

    class Agent(AgentPolicy):
        count = 0

        def step(self, observation):
            self.count += 1
            return 0 if self.count < 7 else int(random.random() * 3) + int(np.random.randint(2))

    def agent_policy(self, agent):
        return self.Agent()


class Weights(MultiAgentPolicy):
    """Draws its weights when it is built, from generators that nobody has seeded."""

    def __init__(self, world):
        super().__init__(world)
        self.weights = np.random.normal(size=7)
        self.bias = random.random()

    def agent_policy(self, agent):
        weights, bias = self.weights, self.bias

        class Agent(AgentPolicy):
            count = 0

            def step(self, observation):
                self.count += 1
                return int(abs(weights[self.count % 7] + bias) * 10) % 5

        return Agent()


class DrawsInBatches(MultiAgentPolicy):
    """Draws for all its agents at once."""

    def agent_policy(self, agent):
        return AgentPolicy()

    def step_batch(self, policies, observations):
        return [random.randrange(5) for _ in policies]


class Samples(MultiAgentPolicy):
    """Samples its actions from the space, as many do."""

    def agent_policy(self, agent):
        space = self.world.action_spaces[agent]

        class Agent(AgentPolicy):
            def step(self, observation):
                return space.sample()

        return Agent()


class DrawsLate(gymnasium.Env):
    """A world that draws late in its episode."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        reward = random.random() if self.count > 20 else 0.0
        return np.zeros(1, np.float32), reward + int(action), False, self.count == 25, {}


def played(mission, policy, **way):
    report = stretto.evaluate(mission, policy, episodes=3, steps=30, **way)
    assert all(record.failure is None for record in report.records)
    return [(record.rewards, record.statistics) for record in report.records]


@pytest.mark.parametrize("policy", [Late, Weights, DrawsInBatches, Samples])
def test_a_policy_gives_the_same_wherever_it_plays(policy):
    first = played("foundry_1", policy, **WAYS[0])
    assert all(played("foundry_1", policy, **way) == first for way in WAYS)


def test_a_world_gives_the_same_wherever_it_is_played():
    first = played(DrawsLate, "noop", **WAYS[0])
    assert len({str(rewards) for rewards, _ in first}) == 3
    assert all(played(DrawsLate, "noop", **way) == first for way in WAYS)


def test_weights_depend_on_the_seed():
    assert played("foundry_1", Weights, seed=1, jobs=0) != played("foundry_1", Weights, seed=2, jobs=0)


class TorchWhen(MultiAgentPolicy):
    """Imports torch and draws from it at once: when it is loaded, when an agent's policy is made, or in some step."""

    def __init__(self, world, when):
        super().__init__(world)
        self.when = when
        self.weight = self.draw("load")

    def draw(self, now) -> float:
        if now != self.when:
            return 0.0
        import torch

        return float(torch.rand(()))

    def agent_policy(self, agent):
        team, bias = self, self.draw("begin")

        class Agent(AgentPolicy):
            count = 0

            def step(self, observation):
                self.count += 1
                drawn = team.weight + bias + team.draw(self.count)
                return int(drawn * 1e6 + self.count) % 5

        return Agent()


class DrawsFromTorch(DrawsLate):
    """A world that first imports torch in the middle of an episode, and draws from it at once."""

    def __init__(self, at_step):
        self.at_step = at_step

    def step(self, action):
        observation, reward, *others = super().step(action)
        if self.count >= self.at_step:
            import torch

            reward += float(torch.rand(()))
        return observation, reward, *others


def with_one_job(ways):
    """Return ways with one process for worlds: each takes a second to import torch."""
    return [{**way, "jobs": min(1, way["jobs"])} for way in ways]


needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@needs_torch
@pytest.mark.usefixtures("workers_without_torch")
@pytest.mark.parametrize("when", ["load", "begin", 1, 7])
def test_a_policy_that_imports_torch_whenever_it_likes_gives_the_same_wherever_it_plays(when):
    policy = PolicySpec("torch", TorchWhen, {"when": when})
    first = played("foundry_1", policy, **WAYS[0])
    assert played("foundry_1", PolicySpec("torch", TorchWhen, {"when": "never"}), **WAYS[0]) != first
    # The last way has other processes for worlds and for agents, the two before it for one of them: once is enough.
    assert all(played("foundry_1", policy, **way) == first for way in with_one_job(WAYS if when == 7 else WAYS[:-1]))


@needs_torch
@pytest.mark.usefixtures("workers_without_torch")
@pytest.mark.parametrize("at_step", [1, 22])
def test_so_does_a_world(at_step):
    make = functools.partial(DrawsFromTorch, at_step)
    first = played(make, "noop", **WAYS[0])
    assert len({str(rewards) for rewards, _ in first}) == 3
    assert all(played(make, "noop", **way) == first for way in with_one_job(WAYS))
