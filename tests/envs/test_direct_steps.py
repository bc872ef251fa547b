"""Wrappers that only pass steps on are passed by, and nobody can tell."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

import stretto
from stretto.adapters.gymnasium import direct_step
from stretto.testing import check_equals_gymnasium
from tests.worlds import CountTo


def made(steps: int = 3) -> gymnasium.Env:
    return TimeLimit(OrderEnforcing(PassiveEnvChecker(CountTo(1000))), steps)


def started() -> gymnasium.Env:
    env = made()
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    env.reset()
    return env


def test_they_are_called_until_they_have_nothing_left_to_do():
    env = made()
    assert direct_step(env) == (env.step, False)
    env.reset(seed=0)
    assert direct_step(env) == (env.step, False)
    assert direct_step(started())[1]


def test_a_limit_of_time_goes_on_counting():
    env = started()
    step, _ = direct_step(env)
    assert [step(0)[3] for _ in range(3)] == [False, False, True]
    assert env._elapsed_steps == 3
    env.reset()
    assert [step(0)[3], env.step(0)[3], step(0)[3]] == [False, False, True]


def test_a_wrapper_of_any_other_type_is_called():
    class Limit(TimeLimit):
        pass

    class Order(OrderEnforcing):
        pass

    outer = Limit(CountTo(9), 3)
    assert direct_step(outer) == (outer.step, True)
    inner = Order(CountTo(9))
    limited = TimeLimit(inner, 3)
    limited.reset()
    inner.step = lambda action: (np.array([7.0, 7.0]), 7.0, False, False, {})
    assert direct_step(limited)[0](0)[1] == 7.0


def test_a_step_that_somebody_put_into_a_wrapper_is_called():
    env = started()
    env.env.step = lambda action: (np.array([7.0, 7.0]), 7.0, False, False, {})
    assert direct_step(env)[0](0)[1] == 7.0


def change(env: gymnasium.Env) -> None:
    world = env.env
    env.env = gymnasium.wrappers.TransformReward(world, lambda reward: reward + 41)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_wrapper_that_is_put_in_later_is_called(backend):
    with stretto.make_vec(made, 2, env_kwargs={"steps": 10_000}, backend=backend) as envs:
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(np.zeros(2, int))
        envs.map(change)
        assert envs.step(np.zeros(2, int)).rewards.min() >= 41


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_worlds_as_gymnasium_makes_them_are_equal_to_gymnasium(mode):
    assert check_equals_gymnasium(made, autoreset_mode=mode, steps=80).episodes > 0
