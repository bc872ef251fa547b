"""Blocks of many slots and agents reach a policy as they are, and new weights reach it wherever it acts."""

from __future__ import annotations

import os
import select
import signal

import numpy as np
import pytest
from gymnasium import spaces

from stretto.core import AgentPolicy, BlockAnswer, BlockPolicy, MultiAgentPolicy, PolicyStep, WorldSpec
from stretto.errors import PolicyFailed, UsageError
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.processes import Processes
from stretto.policies.questions import AgentEpisode, Block, Question
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


class InBlocks(BlockPolicy):
    """The same as a function of arrays; adds its weight, and says the state of each agent."""

    def __init__(self, world):
        super().__init__(world)
        self.weight, self.shapes = 0, []

    def set_weights(self, weights):
        self.weight = int(weights["w"][0])

    def initial_state(self):
        return {"steps": np.int64(0)}

    def step_block(self, observations, states, choices):
        self.shapes.append(observations.shape)
        steps = states["steps"] + 1
        actions = observations.sum(axis=-1).astype(np.int64) + 10 * steps + self.weight
        return BlockAnswer(actions, {"steps": steps}, {"steps": steps, "chance": choices.uniform(2)})


class Inverts(InBlocks):
    """Can compute only with states that are its own: zeros would be divided by."""

    def initial_state(self):
        return {"steps": np.int64(1)}

    def step_block(self, observations, states, choices):
        with np.errstate(divide="raise"):
            np.reciprocal(states["steps"].astype(np.float64))
        return super().step_block(observations, states, choices)


def plans(*kinds):
    return [PolicyPlan(PolicySpec(kind.__name__, kind), rows=12, blocks=True) for kind in kinds]


def everybody(policy=0):
    tree = SeedTree(1)
    return [
        AgentEpisode(episode, agent, policy, tree.child(episode, agent), row=3 * episode + j)
        for episode in (7, 8)
        for j, agent in enumerate(AGENTS)
    ]


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
        actions = runner.act_block(block()).actions
        assert actions.dtype == np.int64
        assert np.array_equal(actions, expected)
    runner.close()


def test_calls_have_one_shape_and_what_is_chosen_does_not_depend_on_who_else_is_asked():
    runner = InPlace(plans(InBlocks), WORLD, batched=True)
    runner.begin(everybody())
    both = runner.act_block(block())
    other = InPlace(plans(InBlocks), WORLD, batched=True)
    other.begin(everybody())
    for s, episode in enumerate((7, 8)):
        one = other.act_block(Block(0, (episode,), AGENTS, SEEN[s : s + 1], ACTING[s : s + 1]))
        assert np.array_equal(one.actions[0], both.actions[s])
        assert np.array_equal(one.says["chance"][0], both.says["chance"][s])
    assert {shape for one in (runner, other) for shape in one._actors._loaded[0].policy.shapes} == {(3, 4, 2)}


def test_two_episodes_that_stand_in_one_row_are_asked_in_two_calls():
    runner = InPlace(plans(InBlocks), WORLD, batched=True)
    for episode in (3, 7):
        runner.begin([AgentEpisode(episode, agent, 0, SeedTree(1), 3 * episode + j) for j, agent in enumerate(AGENTS)])
    answer = runner.act_block(Block(0, (7, 3), AGENTS, SEEN, ACTING))
    assert answer.actions.tolist() == [[11, 15, 0], [0, 27, 31]]
    assert len(runner._actors._loaded[0].policy.shapes) == 2


def test_who_does_not_act_keeps_its_state_and_its_place_in_its_stream():
    runner = InPlace(plans(InBlocks), WORLD, batched=True)
    runner.begin(everybody())
    first = runner.act_block(block())
    second = runner.act_block(block()._replace(acting=~ACTING))
    assert second.says["steps"].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert not np.array_equal(first.says["chance"][ACTING], second.says["chance"][ACTING])
    assert np.all(first.says["chance"][~ACTING] == 0)


def test_a_policy_in_blocks_can_be_asked_one_by_one():
    blocks, alone = (InPlace(plans(InBlocks), WORLD, batched=True) for _ in range(2))
    blocks.begin(everybody())
    alone.begin(everybody())
    for _ in range(2):
        wanted = blocks.act_block(block()).actions
        where = np.argwhere(ACTING)
        alone.ask([Question((7, 8)[s], AGENTS[j], 0, SEEN[s, j].copy()) for s, j in where])
        assert [decision.action for decision in alone.replies()] == [wanted[s, j] for s, j in where]


class Says(Agent):
    def step(self, observation):
        return PolicyStep(super().step(observation), {"value": np.float32(self.steps), "twice": (self.steps, 2)})


class OneByOneThatSays(MultiAgentPolicy):
    def agent_policy(self, agent):
        return Says()


def test_what_agents_say_about_their_actions_comes_along():
    runner = InPlace(plans(OneByOneThatSays), WORLD, batched=True)
    runner.begin(everybody())
    answer = runner.act_block(block())
    assert answer.actions.tolist() == [[11, 15, 0], [0, 27, 31]]
    assert answer.says["value"].tolist() == [[1, 1, 0], [0, 1, 1]]
    assert answer.says["value"].dtype == np.float32
    assert [part.tolist() for part in answer.says["twice"]] == [[[1, 1, 0], [0, 1, 1]], [[2, 2, 0], [0, 2, 2]]]


def test_several_policies_have_blocks_of_their_own_each_with_its_strategy():
    runner = make_runner(plans(InBlocks, OneByOne), WORLD, ["processes", "batched"], 2)
    first = [who for who in everybody(0) if who.episode == 7]
    second = [who for who in everybody(1) if who.episode == 8]
    runner.begin(first)
    runner.begin(second)
    runner.publish(1, {0: {"w": np.array([50])}})
    one = runner.act_block(Block(0, (7,), AGENTS, SEEN[:1], ACTING[:1]))
    other = runner.act_block(Block(1, (8,), AGENTS, SEEN[1:], ACTING[1:]))
    assert one.actions.tolist() == [[61, 65, 0]]
    assert other.actions.tolist() == [[0, 27, 31]]
    runner.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_that_are_published_are_acted_on_wherever_the_policy_is(strategy):
    runner = make_runner(plans(InBlocks), WORLD, [strategy], 2)
    runner.begin(everybody())
    before = runner.act_block(block()).actions
    runner.publish(1, {0: {"w": np.array([1000])}})
    after = runner.act_block(block()).actions
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
    assert runner.act_block(block()).actions[0, 0] == 1 + 10 + 1000
    runner.close()


def test_weights_for_a_policy_that_takes_none_are_refused():
    runner = InPlace(plans(OneByOne), WORLD, batched=True)
    with pytest.raises(UsageError, match="a policy with set_weights, got some for 'OneByOne'"):
        runner.publish(1, {0: {"w": np.zeros(1)}})


class Fails(InBlocks):
    def step_block(self, observations, states, choices):
        raise ValueError("no idea")


@pytest.mark.parametrize("strategy", ["batched", "processes"])
def test_one_that_raises_is_named(strategy):
    runner = make_runner(plans(Fails), WORLD, [strategy], 2)
    runner.begin(everybody())
    with pytest.raises(PolicyFailed, match="no idea"):
        runner.act_block(block())
    runner.close()


def test_rows_that_nobody_has_are_in_the_initial_state():
    runner = InPlace(plans(Inverts), WORLD, batched=True)
    runner.begin(everybody())
    assert runner.act_block(block()).says["steps"].max() == 2
