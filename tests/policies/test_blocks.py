"""Blocks of many slots and agents reach a policy as they are, and new weights reach it wherever it acts."""

from __future__ import annotations

import os
import select
import signal

import numpy as np
import pytest
from gymnasium import spaces

from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec
from stretto.errors import PolicyFailed, UsageError
from stretto.policies.actors import AgentEpisode, Block, PolicyPlan, Question
from stretto.policies.processes import Processes
from stretto.policies.runners import InPlace
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import make_runner
from stretto.seeding import SeedTree

AGENTS = ("a", "b", "c")
WORLD = WorldSpec(AGENTS, dict.fromkeys(AGENTS, spaces.Box(-9, 9, (2,))), dict.fromkeys(AGENTS, spaces.Discrete(100)))
SEEN = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
ACTING = np.array([[True, True, False], [False, True, True]])
STRATEGIES = ["sequential", "batched", "threads", "processes", "adaptive"]


class Agent(AgentPolicy):
    """Counts its steps."""

    steps = 0

    def step(self, observation):
        self.steps += 1
        return int(observation.sum()) + 10 * self.steps


class OneByOne(MultiAgentPolicy):
    def agent_policy(self, agent):
        return Agent()


class InBlocks(OneByOne):
    """Adds its weight; tells, where it is asked to, whether it was given the very memory of the caller."""

    def __init__(self, world):
        super().__init__(world)
        self.weight, self.seen = 0, None

    def set_weights(self, weights):
        self.weight = int(weights["w"][0])

    def step_block(self, agent_policies, observations, acting):
        self.seen = observations
        actions = np.zeros(acting.shape, np.int64)
        for s, row in enumerate(agent_policies):
            for j, policy in enumerate(row):
                assert (policy is None) == (not acting[s, j])
                if policy is not None:
                    actions[s, j] = policy.step(observations[s, j]) + self.weight
        return actions


def plans(*kinds):
    return [PolicyPlan(PolicySpec(kind.__name__, kind), blocks=True) for kind in kinds]


def everybody(policy=0):
    tree = SeedTree(1)
    return [AgentEpisode(episode, agent, policy, tree.child(agent)) for episode in (7, 8) for agent in AGENTS]


def block(policy=0):
    return Block(policy, (7, 8), AGENTS, SEEN, ACTING)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [OneByOne, InBlocks])
def test_a_block_gives_what_its_agents_would_one_by_one(kind, strategy):
    alone = InPlace(plans(OneByOne), WORLD, batched=False)
    alone.begin(everybody())
    runner = make_runner(plans(kind), WORLD, [strategy], 2)
    runner.begin(everybody())
    for _ in range(3):
        where = np.argwhere(ACTING)
        alone.ask([Question((7, 8)[s], AGENTS[j], 0, SEEN[s, j].copy()) for s, j in where])
        expected = np.zeros((2, 3), np.int64)
        for (s, j), decision in zip(where, alone.replies(), strict=True):
            expected[s, j] = decision.action
        actions = runner.act_block(block())
        assert actions.dtype == np.int64
        assert np.array_equal(actions, expected)
    runner.close()


def test_in_place_a_block_is_the_callers_own_memory():
    runner = InPlace(plans(InBlocks), WORLD, batched=True)
    runner.begin(everybody())
    runner.act_block(block())
    assert runner._actors._loaded[0].policy.seen is SEEN
    runner.close()


def test_several_policies_have_blocks_of_their_own_each_with_its_strategy():
    runner = make_runner(plans(InBlocks, OneByOne), WORLD, ["processes", "batched"], 2)
    first = [who for who in everybody(0) if who.episode == 7]
    second = [who for who in everybody(1) if who.episode == 8]
    runner.begin(first)
    runner.begin(second)
    runner.publish(1, {0: {"w": np.array([50])}})
    one = runner.act_block(Block(0, (7,), AGENTS, SEEN[:1], ACTING[:1]))
    other = runner.act_block(Block(1, (8,), AGENTS, SEEN[1:], ACTING[1:]))
    assert one.tolist() == [[61, 65, 0]]
    assert other.tolist() == [[0, 27, 31]]
    runner.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_that_are_published_are_acted_on_wherever_the_policy_is(strategy):
    runner = make_runner(plans(InBlocks), WORLD, [strategy], 2)
    runner.begin(everybody())
    before = runner.act_block(block())
    runner.publish(1, {0: {"w": np.array([1000])}})
    after = runner.act_block(block())
    assert np.array_equal(after, before + np.where(ACTING, 1010, 0))  # one more step, and the weight
    runner.close()


def test_a_process_that_takes_the_place_of_one_that_died_has_the_weights_too():
    runner = Processes(plans(InBlocks), WORLD, processes=2)
    runner.begin(everybody())
    runner.publish(3, {0: {"w": np.array([1000])}})
    for pid in runner.pids:
        handle = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([handle], [], [], 10)  # until it is gone
        os.close(handle)
    runner.begin(everybody())
    assert runner.act_block(block())[0, 0] == 1 + 10 + 1000
    runner.close()


def test_weights_for_a_policy_that_takes_none_are_refused():
    runner = InPlace(plans(OneByOne), WORLD, batched=True)
    with pytest.raises(UsageError, match="a policy with set_weights, got some for 'OneByOne'"):
        runner.publish(1, {0: {"w": np.zeros(1)}})


class Fails(InBlocks):
    def step_block(self, agent_policies, observations, acting):
        raise ValueError("no idea")


@pytest.mark.parametrize("strategy", ["batched", "processes"])
def test_one_that_raises_is_named(strategy):
    runner = make_runner(plans(Fails), WORLD, [strategy], 2)
    runner.begin(everybody())
    with pytest.raises(PolicyFailed, match="no idea"):
        runner.act_block(block())
    runner.close()
