"""Wherever agents choose, they choose the same; and several of them at the same time."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from gymnasium import spaces

from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec
from stretto.errors import PolicyFailed, PolicyLost
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.processes import Processes
from stretto.policies.questions import AgentEpisode, Question
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import make_runner
from stretto.seeding import SeedTree
from tests.evaluation.players import Drawing, Faulty, GlobalDrawing, Sleeping, Stateful

AGENTS = tuple("abcd")
WORLD = WorldSpec(
    AGENTS,
    dict.fromkeys(AGENTS, spaces.Box(-1, 1, (3,), np.float32)),
    dict.fromkeys(AGENTS, spaces.Discrete(1000)),
)
STRATEGIES = ["sequential", "threads", "processes", "batched", "adaptive"]

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def casting(policy, draws=(), **kwargs):
    return PolicyPlan(PolicySpec(policy.__name__, policy, kwargs), frozenset(draws))


def roles(episode, policies=(0, 0, 0, 0)):
    tree = SeedTree(5).child(episode)
    return [
        AgentEpisode(episode, agent, policy, tree.child(agent), row)
        for row, (agent, policy) in enumerate(zip(AGENTS, policies, strict=True))
    ]


def questions(episode, step, policies=(0, 0, 0, 0)):
    draw = np.random.default_rng([episode, step])
    asked = zip(AGENTS, policies, strict=True)
    return [Question(episode, agent, policy, draw.random(3, np.float32)) for agent, policy in asked]


def actions(runner, episode, steps=20, policies=(0, 0, 0, 0)):
    runner.begin(roles(episode, policies))
    found = []
    for step in range(steps):
        runner.ask(questions(episode, step, policies))
        found.append([int(reply.action) for reply in runner.replies()])
    runner.end(episode)
    return found


@every_strategy
@pytest.mark.parametrize(
    "cast",
    [casting(Stateful), casting(Drawing), casting(GlobalDrawing, ["random", "numpy"])],
    ids=lambda c: c.spec.name,
)
def test_every_strategy_chooses_the_same_in_every_episode(cast, strategy):
    def run(name):
        runner = make_runner([cast], WORLD, [name], 2)
        try:
            return [actions(runner, episode) for episode in (1, 2, 1)]
        finally:
            runner.close()

    expected = run("sequential")
    assert expected[0] == expected[2] != expected[1]
    assert run(strategy) == expected


def test_policies_of_one_episode_may_have_different_strategies():
    casts = [casting(Stateful), casting(Drawing), casting(GlobalDrawing, ["random", "numpy"])]

    def run(names):
        runner = make_runner(casts, WORLD, names, 2)
        try:
            return actions(runner, 1, policies=(0, 1, 2, 0))
        finally:
            runner.close()

    assert (
        run(["processes", "threads", "batched"]) == run(["sequential"] * 3) == run(["adaptive", "processes", "threads"])
    )


@every_strategy
def test_two_episodes_under_way_do_not_touch_each_other(strategy):
    runner = make_runner([casting(Stateful)], WORLD, [strategy], 2)
    try:
        alone = [actions(runner, episode, 5) for episode in (1, 2)]
        runner.begin(roles(1))
        runner.begin(roles(2))
        both = [[], []]
        for step in range(5):
            runner.ask(questions(1, step) + questions(2, step))
            replies = [int(reply.action) for reply in runner.replies()]
            both[0].append(replies[:4])
            both[1].append(replies[4:])
        assert both == alone
    finally:
        runner.close()


@every_strategy
def test_one_that_raises_is_named_and_the_next_episode_is_well(strategy):
    casts = [casting(Stateful), casting(Faulty, how="raise", share=1.0, at=2)]
    runner = make_runner(casts, WORLD, ["sequential", strategy], 2)
    try:
        with pytest.raises(PolicyFailed, match="had enough") as caught:
            actions(runner, 1, policies=(0, 0, 1, 0))
        assert (caught.value.policy, caught.value.agent) == (1, "c")
        assert len(actions(runner, 2)) == 20
    finally:
        runner.close()


def test_the_caller_may_be_one_of_the_processes():
    alone, shared = (Processes([casting(Drawing)], WORLD, processes=2, takes_part=part) for part in (False, True))
    try:
        assert actions(shared, 1) == actions(alone, 1)
        assert (len(shared.pids), len(alone.pids)) == (1, 2)
    finally:
        alone.close()
        shared.close()


@pytest.mark.parametrize("faulty", [(0, 1, 1, 0), (1, 0, 0, 1), (0, 0, 1, 1)])
def test_of_several_that_raise_the_first_agent_is_told_wherever_it_chooses(faulty):
    casts = [casting(Stateful), casting(Faulty, how="raise", share=1.0, at=2)]
    told = []
    for strategy in ("sequential", "processes"):
        runner = make_runner(casts, WORLD, [strategy] * 2, 2, takes_part=True)
        try:
            with pytest.raises(PolicyFailed) as caught:
                actions(runner, 1, policies=faulty)
            told.append((caught.value.policy, caught.value.agent))
            assert len(actions(runner, 2)) == 20
        finally:
            runner.close()
    assert told[0] == told[1] == (1, AGENTS[faulty.index(1)])


def test_observations_of_any_size_reach_agents_in_processes():
    runner = Processes([casting(Stateful)], WORLD, processes=2)
    try:
        runner.begin(roles(1))
        for size in (1, 100_000, 10, 1_000_000):  # through shared memory, or by mail where there is no room
            runner.ask([Question(1, agent, 0, np.full(size, i, np.float32)) for i, agent in enumerate(AGENTS)])
            assert len(runner.replies()) == 4
    finally:
        runner.close()


def test_a_process_that_is_killed_is_told_and_a_new_one_takes_its_place():
    runner = Processes([casting(Stateful)], WORLD, processes=2)
    try:
        expected = actions(runner, 1)
        runner.begin(roles(2))
        os.kill(runner.pids[0], signal.SIGKILL)
        with pytest.raises(PolicyLost):
            for step in range(3):
                runner.ask(questions(2, step))
                runner.replies()
        runner.end(2)
        assert actions(runner, 1) == expected
    finally:
        runner.close()


def test_one_that_hangs_is_ended_when_its_time_is_up():
    runner = Processes([casting(Sleeping, seconds=0.0), casting(Sleeping, seconds=3600)], WORLD, processes=4)
    try:
        actions(runner, 1, 1)
        runner.begin(roles(2, (0, 1, 0, 0)))
        runner.ask(questions(2, 0, (0, 1, 0, 0)), 0.3)
        with pytest.raises(PolicyLost, match="in step") as caught:
            runner.replies()
        assert (caught.value.policy, caught.value.agent) == (1, "b")
    finally:
        runner.close()


# ---- what must not depend on where it is computed ----


class Unsendable(MultiAgentPolicy):
    """Chooses something that cannot be pickled."""

    class Agent(AgentPolicy):
        def step(self, observation):
            time.sleep(0.005)
            return threading.Lock()

    def agent_policy(self, agent):
        return self.Agent()


def test_of_several_agents_in_one_process_the_one_whose_action_cannot_be_sent_is_named():
    runner = Processes([casting(Stateful), casting(Unsendable)], WORLD, processes=1)
    try:
        for policies, agent in (((0, 1, 0, 0), "b"), ((1, 0, 0, 0), "a"), ((0, 0, 1, 1), "c")):
            runner.begin(roles(1, policies))
            runner.ask(questions(1, 0, policies))
            with pytest.raises(PolicyFailed, match=f"what agent {agent} chose did not arrive") as caught:
                runner.replies()
            assert (caught.value.policy, caught.value.agent) == (1, agent)
            runner.end(1)
    finally:
        runner.close()


class Batch(MultiAgentPolicy):
    """Returns `extra` actions too many for a batch."""

    def __init__(self, world, extra):
        super().__init__(world)
        self.extra = extra

    def agent_policy(self, agent):
        return AgentPolicy()

    def step_batch(self, policies, observations):
        return [0] * (len(policies) + self.extra)


class Counting(MultiAgentPolicy):
    """Fails when an agent acts for the third time; agents that only fill up a batch must not get that far."""

    class Agent(AgentPolicy):
        count = 0

    def agent_policy(self, agent):
        return self.Agent()

    def step_batch(self, policies, observations):
        for policy in policies:
            policy.count += 1
            if policy.count == 4:
                raise ValueError("that is enough")
        return [policy.count for policy in policies]


class Changing(MultiAgentPolicy):
    """Changes what it sees, row by row."""

    def agent_policy(self, agent):
        return AgentPolicy()

    def step_batch(self, policies, observations):
        for observation in observations:
            np.add(observation, 1, out=observation)
        return [float(observation[0]) for observation in observations]


def test_what_cannot_be_sent_fails_by_name_and_the_next_episode_is_well():
    runner = Processes([casting(Stateful), casting(Unsendable)], WORLD, processes=2)
    try:
        expected = actions(runner, 1)
        runner.begin(roles(2, (0, 1, 0, 0)))
        runner.ask(questions(2, 0, (0, 1, 0, 0)))
        with pytest.raises(PolicyFailed, match="cannot pickle"):
            runner.replies()
        runner.end(2)
        runner.begin(roles(3))
        seen = questions(3, 0)
        seen[2] = Question(3, "c", 0, threading.Lock())
        with pytest.raises(PolicyFailed, match="what agent c observes must be picklable"):
            runner.ask(seen)
        runner.end(3)
        assert actions(runner, 1) == expected
    finally:
        runner.close()


@every_strategy
@pytest.mark.parametrize("extra", [-1, 1])
def test_a_batch_of_the_wrong_length_is_refused_everywhere(strategy, extra):
    cast = PolicyPlan(PolicySpec("batch", Batch, {"extra": extra}), frozenset(), 4)
    runner = make_runner([cast], WORLD, [strategy], 2)
    try:
        with pytest.raises(PolicyFailed, match=f"an action for each of 4 agents, got {4 + extra}"):
            actions(runner, 1, 1)
    finally:
        runner.close()


@every_strategy
def test_agents_that_fill_up_a_batch_are_nobody(strategy):
    runner = make_runner([PolicyPlan(PolicySpec("counting", Counting, {}), frozenset(), 8)], WORLD, [strategy], 2)
    try:
        for episode in range(3):
            assert actions(runner, episode, 3) == [[step + 1] * 4 for step in range(3)]
    finally:
        runner.close()


@every_strategy
def test_a_policy_that_changes_what_it_sees_in_a_batch_changes_each_row_once(strategy):
    runner = make_runner([PolicyPlan(PolicySpec("changing", Changing, {}), frozenset(), 8)], WORLD, [strategy], 2)
    try:
        runner.begin(roles(1))
        asked = questions(1, 0)
        expected = [float(question.observation[0] + np.float32(1)) for question in asked]
        runner.ask(asked)
        assert [reply.action for reply in runner.replies()] == expected
    finally:
        runner.close()


def test_waiting_for_the_global_generators_is_not_charged():
    runner = make_runner([casting(Slow, ["random"])], WORLD, ["threads"], 4)
    try:
        runner.begin(roles(1))
        runner.ask(questions(1, 0))
        replies = runner.replies()
        assert sum(reply.seconds for reply in replies) < 2 * 4 * 0.05
    finally:
        runner.close()


class Slow(MultiAgentPolicy):
    """Takes a while, and draws from the global generator."""

    class Agent(AgentPolicy):
        def step(self, observation):
            time.sleep(0.05)
            return int(random.random() * 3)

    def agent_policy(self, agent):
        return self.Agent()


@pytest.mark.parametrize(
    "names", [["sequential"] * 2, ["threads", "processes"], ["processes", "batched"], ["batched", "threads"]]
)
def test_of_two_policies_that_fail_in_one_step_the_first_agent_is_told_whatever_their_strategies(names):
    casts = [casting(Faulty, how="raise", share=1.0, at=1) for _ in range(2)]
    runner = make_runner(casts, WORLD, names, 2)
    try:
        with pytest.raises(PolicyFailed) as caught:
            actions(runner, 1, policies=(1, 0, 0, 1))
        assert (caught.value.policy, caught.value.agent) == (1, "a")
    finally:
        runner.close()


def test_of_many_agents_in_one_process_the_one_that_dies_is_named():
    casts = [casting(Stateful), casting(Faulty, how="die", share=1.0, at=1)]
    runner = Processes(casts, WORLD, processes=1)
    try:
        with pytest.raises(PolicyLost) as caught:
            actions(runner, 1, policies=(0, 0, 1, 0))
        assert (caught.value.policy, caught.value.agent) == (1, "c")
    finally:
        runner.close()


def test_an_episode_that_is_over_needs_nobody_who_answers():
    runner = Processes([casting(Stateful)], WORLD, processes=2)
    try:
        expected = actions(runner, 1)
        runner.begin(roles(2))
        for pid in runner.pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
        runner.end(2)
        assert actions(runner, 1) == expected
    finally:
        runner.close()
