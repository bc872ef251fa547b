"""One agent: steps go past wrappers that would only pass them on, and nobody can tell."""

from __future__ import annotations

import sys

import gymnasium
import pytest
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from stretto.adapters.agents import as_agents
from stretto.adapters.gymnasium import ONLY_AGENT
from tests.worlds import CountTo


def made(goal: int, steps: int) -> gymnasium.Env:
    return TimeLimit(OrderEnforcing(PassiveEnvChecker(CountTo(goal))), steps)


class Counted(gymnasium.Wrapper):
    """Counts the steps that go through it."""

    steps = 0

    def step(self, action):
        self.steps += 1
        return super().step(action)


def play(world, steps=20):
    """Play an episode; return, step by step, what it gave."""
    world.reset(seed=0)
    given = []
    while len(given) < steps:
        outcome = world.step({ONLY_AGENT: 0})
        given.append((outcome.rewards[ONLY_AGENT], outcome.terminated[ONLY_AGENT], outcome.truncated[ONLY_AGENT]))
        if not outcome.acting:
            break
    return given


def play_plainly(env, steps=20):
    env.reset(seed=0)
    given = []
    while len(given) < steps:
        _, reward, terminated, truncated, _ = env.step(0)
        given.append((float(reward), terminated, truncated))
        if terminated or truncated:
            break
    return given


@pytest.mark.parametrize(("goal", "limit"), [(100, 4), (3, 4), (4, 4), (100, 1)])
def test_every_episode_is_that_of_the_wrapped_world(goal, limit):
    ours, plain = as_agents(made(goal, limit)), made(goal, limit)
    for _ in range(4):
        assert play(ours) == play_plainly(plain)
        assert ours.native._elapsed_steps == plain._elapsed_steps


class Asking(CountTo):
    """Takes note of who calls its steps."""

    def step(self, action):
        self.caller = sys._getframe(1).f_globals["__name__"]
        return super().step(action)


def test_steps_pass_the_wrappers_by_once_these_have_nothing_left_to_do():
    inside = Asking(100)
    world = as_agents(TimeLimit(OrderEnforcing(PassiveEnvChecker(inside)), 4))
    callers = []
    for _ in range(2):
        world.reset(seed=0)
        for _ in range(4):
            world.step({ONLY_AGENT: 0})
            callers.append(inside.caller.partition(".")[0])
    assert callers == ["gymnasium", "gymnasium", "stretto", "gymnasium", "stretto", "stretto", "stretto", "gymnasium"]


def test_a_limit_of_time_goes_on_for_whoever_steps_beyond_it():
    world, plain = as_agents(made(100, 3)), made(100, 3)
    for _ in range(2):
        play(world), play_plainly(plain)
    for _ in range(3):
        outcome = world.step({ONLY_AGENT: 0})
        assert outcome.truncated[ONLY_AGENT] is plain.step(0)[3] is True


def test_a_wrapper_of_another_kind_sees_every_step():
    inside = Counted(CountTo(100))
    world = as_agents(TimeLimit(OrderEnforcing(inside), 5))
    for _ in range(3):
        play(world)
    assert inside.steps == 15
