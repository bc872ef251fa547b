"""Adaptive tries where agents choose fastest on real steps, an episode each, and stays there."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from gymnasium import spaces

from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec
from stretto.policies.adaptive import WATCHED_STEPS, Adaptive
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import AgentEpisode, Decision, Question
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import make_runner
from stretto.seeding import SeedTree

AGENTS = ("a", "b", "c", "d")
WORLD = WorldSpec(
    AGENTS, dict.fromkeys(AGENTS, spaces.Box(-1, 1, (3,), np.float32)), dict.fromkeys(AGENTS, spaces.Discrete(9))
)
ALL = ("threads", "processes")


class Clock:
    """Shows the time that runners took."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Taking:
    """A runner whose steps take so many seconds, by a clock."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.asked, self.closed, self.weights = clock, seconds, 0, False, None

    def begin(self, agents):
        pass

    def choosers(self, episode):
        return {}

    def ask(self, questions, limit_seconds=None):
        self.asked += 1

    def replies(self):
        self.clock.now += self.seconds
        return [Decision(0, 0.0)]

    def publish(self, version, weights):
        self.weights = version, weights

    def end(self, episode):
        return frozenset()

    def close(self):
        self.closed = True


def adaptive(others=ALL, why_not="", **seconds):
    """Return one for which a step takes so long in each place, and the runners that it has made."""
    clock, made = Clock(), {}

    def make(place):
        made[place] = Taking(clock, seconds[place])
        return made[place]

    return Adaptive(others, make, why_not=why_not, clock=clock), made


def roles(episode):
    tree = SeedTree(episode)
    return [AgentEpisode(episode, agent, 0, tree.child(agent), row) for row, agent in enumerate(AGENTS)]


def questions(episode):
    return [Question(episode, agent, 0, np.zeros(3, np.float32)) for agent in AGENTS]


def play(runner, episodes, steps=3):
    """Play episodes; return where each of them was played."""
    places = []
    for episode in range(episodes):
        runner.begin(roles(episode))
        places.append(runner.chosen)
        for _ in range(steps):
            runner.ask(questions(episode), None)
            runner.replies()
        runner.end(episode)
    return places


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({"batched": 0.2, "threads": 0.05, "processes": 0.1}, "threads"),
        ({"batched": 0.02, "threads": 0.021, "processes": 0.011}, "processes"),
        ({"batched": 0.001, "threads": 0.002, "processes": 0.003}, "batched"),
    ],
)
def test_each_place_is_tried_for_an_episode_and_the_fastest_is_kept(seconds, best):
    runner, made = adaptive(**seconds)
    assert play(runner, 5) == ["batched", "threads", "processes", best, best]
    assert runner.reason.startswith(f"{best}: in a step, all agents take ")
    assert [place for place, one in made.items() if not one.closed] == [best]


def test_cheap_policies_stay_where_they_are_and_are_asked_with_nothing_in_between():
    runner, made = adaptive(batched=40e-6, threads=1e-6, processes=1e-6)
    assert play(runner, 3) == ["batched"] * 3
    assert list(made) == ["batched"]
    assert runner.reason == "batched: in a step, all agents take 40 µs, which is not worth handing over"
    assert runner.choosers(2) == {}
    assert runner.ask == made["batched"].ask


def test_while_steps_are_watched_all_agents_are_asked_together():
    runner, _ = adaptive(batched=0.1, threads=0.1, processes=0.1)
    runner.begin(roles(0))
    assert runner.choosers(0) is None


def test_only_the_first_steps_of_an_episode_are_watched():
    runner, made = adaptive(batched=0.1, threads=0.1, processes=0.1)
    play(runner, 1, WATCHED_STEPS)
    assert runner.ask == made["batched"].ask


def test_an_episode_in_which_nobody_chose_is_no_try():
    runner, _ = adaptive(batched=0.1, threads=0.05, processes=0.1)
    assert play(runner, 2, steps=0) == ["batched", "batched"]
    assert play(runner, 2, steps=1) == ["batched", "threads"]


def test_nobody_is_moved_in_the_middle_of_an_episode():
    runner, _ = adaptive(batched=0.1, threads=0.05, processes=0.1)
    play(runner, 1)
    runner.begin(roles(7))
    runner.begin(roles(8))
    runner.end(7)
    runner.begin(roles(9))
    assert runner.chosen == "threads"


def test_weights_that_were_published_are_there_after_a_move():
    runner, made = adaptive(batched=0.1, threads=0.05, processes=0.1)
    runner.publish(3, {0: {}})
    play(runner, 2)
    assert made["threads"].weights == (3, {0: {}})


def test_why_a_place_cannot_be_tried_is_told():
    runner, _ = adaptive((), "it cannot be in another process: a lock", batched=0.1)
    play(runner, 2)
    assert runner.reason == "batched: in a step, all agents take 100 ms; it cannot be in another process: a lock"


class Waiting(MultiAgentPolicy):
    """Each agent takes 5 ms, in which others can run."""

    class Agent(AgentPolicy):
        def step(self, observation):
            time.sleep(0.005)
            return 0

    def agent_policy(self, agent):
        return self.Agent()


def plan(policy, **more):
    return PolicyPlan(PolicySpec(policy.__name__, policy, {}), **more)


@pytest.mark.parametrize(
    ("plans", "options", "others"),
    [
        ([plan(Waiting)], {"cores": 2}, ["threads", "processes"]),
        ([plan(Waiting)], {"cores": 1}, ["threads"]),
        ([plan(Waiting)], {"cores": 2, "timed": True}, ["processes"]),
        ([plan(lambda _: threading.Lock())], {"cores": 1, "timed": True}, []),
    ],
)
def test_what_is_tried_depends_on_cores_and_on_whether_time_is_charged(plans, options, others):
    runner = make_runner(plans, WORLD, ["adaptive"], **options)
    assert isinstance(runner, Adaptive)
    assert runner._others == others
    runner.close()


def test_policies_that_take_long_are_tried_in_threads():
    runner = make_runner([plan(Waiting)], WORLD, ["adaptive"], 1)
    try:
        assert play(runner, 2, 2) == ["batched", "threads"]
    finally:
        runner.close()


def test_a_policy_that_acts_for_many_at_once_is_asked_in_place():
    runner = make_runner([plan(Waiting, rows=4)], WORLD, ["adaptive"], 2)
    assert not isinstance(runner, Adaptive)
    runner.close()
