"""Every agent has its row in a batch, whoever else is asked; and whether rows matter to a policy is found out."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec
from stretto.policies.batches import Batches, probe_rows
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import AgentEpisode, Question
from stretto.policies.runners import InPlace
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import make_runner
from stretto.seeding import SeedTree

AGENTS = tuple("abc")
FLOATS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
WORLD = WorldSpec(AGENTS, dict.fromkeys(AGENTS, spaces.Box(-1, 1, (7,))), dict.fromkeys(AGENTS, FLOATS))


class Telling(MultiAgentPolicy):
    """An agent's action is its row, and how many there are; remembers who stood where."""

    def __init__(self, world):
        super().__init__(world)
        self.lines = []

    class Agent(AgentPolicy):
        agent = ""

    def agent_policy(self, agent):
        made = self.Agent()
        made.agent = agent
        return made

    def step_batch(self, agent_policies, observations):
        self.lines.append("".join(one.agent for one in agent_policies))
        return [np.array([row, len(observations)], np.float32) for row in range(len(observations))]


def plan(rows, policy=Telling, **options):
    return PolicyPlan(PolicySpec(policy.__name__, policy), rows=rows, **options)


def everybody(episodes, policy=0):
    return [
        AgentEpisode(episode, agent, policy, SeedTree(1).child(episode, agent), len(AGENTS) * episode + i)
        for episode in episodes
        for i, agent in enumerate(AGENTS)
    ]


def ask(runner, whom):
    runner.ask([Question(episode, agent, 0, np.zeros(7, np.float32)) for episode, agent in whom])
    return [tuple(decision.action.tolist()) for decision in runner.replies()]


@pytest.mark.parametrize("strategy", ["sequential", "batched", "threads", "processes", "adaptive"])
def test_an_agent_stands_in_its_row_whoever_is_asked_with_it(strategy):
    runner = make_runner([plan(6)], WORLD, [strategy], 2)
    try:
        runner.begin(everybody([0, 1]))
        places = {(episode, agent): (3.0 * episode + i, 6.0) for episode in (0, 1) for i, agent in enumerate(AGENTS)}
        for whom in ([*places], [(1, "b")], [(1, "c"), (0, "a")], [(0, "b"), (0, "c"), (1, "a")]):
            assert ask(runner, whom) == [places[one] for one in whom]
    finally:
        runner.close()


def asked_of(rows, whom, episodes, **options):
    """Return who stood where in each call."""
    runner = InPlace([plan(rows, **options)], WORLD, batched=True)
    runner.begin(everybody(episodes))
    ask(runner, whom)
    return runner._actors._loaded[0].policy.lines


def test_rows_that_nobody_needs_are_filled_by_those_to_whom_they_belong():
    assert asked_of(6, [(1, "b")], [1]) == ["abcabc"]


def test_two_who_want_the_same_row_are_asked_in_two_calls():
    whom = [(0, "a"), (1, "b"), (2, "a"), (2, "c")]
    assert len(asked_of(6, whom, [0, 1, 2])) == 2
    assert len(asked_of(3, whom, [0, 1, 2])) == 2
    assert len(asked_of(6, whom, [0, 1, 2], interchangeable=True)) == 1


def test_where_rows_are_interchangeable_an_agent_still_stands_where_the_row_is_its_own():
    whom = [(episode, agent) for episode in range(5) for agent in "ab"]
    assert asked_of(6, whom, range(5), interchangeable=True) == ["abcabc"] * 3
    assert asked_of(2, whom[:2], range(5), interchangeable=True) == ["ab"]


def test_more_agents_than_rows_are_in_several_calls_each_with_the_same_agents():
    everyone = [(0, agent) for agent in AGENTS]
    assert asked_of(2, everyone, [0]) == ["ab", "ca"]
    assert asked_of(2, everyone[1:], [0]) == ["ab", "ca"]
    assert asked_of(2, everyone[2:], [0]) == ["ca"]


def test_agents_of_another_kind_see_something_of_their_own_space():
    seen = {"a": spaces.Box(-1, 1, (7,)), "b": spaces.Box(2, 3, (3,)), "c": spaces.Box(-1, 1, (7,))}
    batches = Batches(Telling(WORLD), WorldSpec(AGENTS, seen, WORLD.action_spaces), 3, interchangeable=False)
    mine = np.full(7, 0.5, np.float32)
    asked = [SimpleNamespace(agent="c", row=2, policy="c's own")]
    (call,) = batches.calls(asked)
    policies, observations = batches.fill(call, asked, [mine])
    assert policies[2] == "c's own"
    assert observations[2] is mine
    assert np.array_equal(observations[0], mine)
    assert observations[0] is not mine
    assert seen["b"].contains(observations[1])


# ---- the probe ----


class Sums(Telling):
    """Adds up what an agent saw in all its steps: the same in every row."""

    class Agent(Telling.Agent):
        total = 0.0

    def step_batch(self, agent_policies, observations):
        for one, observation in zip(agent_policies, observations, strict=True):
            one.total += float(np.sum(observation))
        return [self.act(one, row) for row, one in enumerate(agent_policies)]

    def act(self, one, row):
        return np.full(2, one.total, np.float32)


class ByRow(Sums):
    """One bit differs in the last row."""

    def act(self, one, row):
        action = super().act(one, row)
        return np.nextafter(action, np.float32(9)) if row == 5 else action


class ByCompany(Sums):
    """Differs by how often an agent is there."""

    def step_batch(self, agent_policies, observations):
        there = Counter(one.agent for one in agent_policies)
        actions = super().step_batch(agent_policies, observations)
        return [
            action + np.float32(1e-6 * there[one.agent]) for one, action in zip(agent_policies, actions, strict=True)
        ]


class Clipped(Sums):
    """Shows nothing of what it computed."""

    def act(self, one, row):
        return np.sign(super().act(one, row))


class Draws(Sums):
    """Draws: the bits below are hidden."""

    def act(self, one, row):
        return super().act(one, row) + one.rng.standard_normal(2).astype(np.float32)


class DrawsGlobally(Sums):
    def act(self, one, row):
        random.random()
        return super().act(one, row)


class Raises(Sums):
    def act(self, one, row):
        raise ValueError("not now")


class SaysSo(ByRow):
    rows_interchangeable = True


class SaysNo(Sums):
    rows_interchangeable = False


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Sums, True),
        (ByRow, False),
        (ByCompany, False),
        (Clipped, False),
        (Draws, False),
        (DrawsGlobally, False),
        (Raises, False),
        (SaysSo, True),
        (SaysNo, False),
    ],
)
def test_rows_are_interchangeable_only_where_nothing_speaks_against_it(policy, expected):
    before = random.getstate()
    assert probe_rows(policy(WORLD), WORLD, 6) is expected
    assert random.getstate() == before


def test_actions_that_are_no_floats_show_nothing():
    world = WorldSpec(AGENTS, WORLD.observation_spaces, dict.fromkeys(AGENTS, spaces.Discrete(5)))
    policy = Sums(world)
    assert not probe_rows(policy, world, 6)


def test_the_rows_of_a_matrix_product_are_told_apart():
    pytest.importorskip("torch")
    from tests.policies.networks import Linear, Recurrent

    for policy in (Linear, Recurrent):
        for size in (27, 25):
            seen = dict.fromkeys(AGENTS, spaces.Box(-1, 1, (size,), np.float32))
            world = WorldSpec(AGENTS, seen, dict.fromkeys(AGENTS, spaces.Box(-np.inf, np.inf, (5,), np.float32)))
            made = policy(world)
            row = np.random.default_rng(0).standard_normal((1, size)).astype(np.float32)
            rows = made.step_batch([made.agent_policy("a") for _ in range(12)], [row[0]] * 12)
            if any(one.tobytes() != rows[0].tobytes() for one in rows):  # as on most CPUs
                assert not probe_rows(made, world, 12)
