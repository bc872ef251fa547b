"""Wrappers that only pass steps on are passed by, and nobody can tell."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

import stretto
from stretto.adapters.gymnasium import direct
from stretto.testing import check_equals_gymnasium
from tests.worlds import CountTo


def made(steps: int = 3, goal: int = 1000) -> gymnasium.Env:
    return TimeLimit(OrderEnforcing(PassiveEnvChecker(CountTo(goal))), steps)


def started() -> gymnasium.Env:
    env = made()
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    env.reset()
    return env


def test_they_are_called_until_they_have_nothing_left_to_do():
    env = made()
    assert (direct(env).step, direct(env).settled) == (env.step, False)
    env.reset(seed=0)
    assert (direct(env).step, direct(env).settled) == (env.step, False)
    way = direct(started())
    assert way.step.__self__.__class__ is CountTo
    assert way.settled


def test_a_wrapper_of_any_other_type_is_called():
    class Limit(TimeLimit):
        pass

    class Order(OrderEnforcing):
        pass

    outer = Limit(CountTo(9), 3)
    assert (direct(outer).step, direct(outer).settled) == (outer.step, True)
    inner = Order(CountTo(9))
    limited = TimeLimit(inner, 3)
    limited.reset()
    inner.step = lambda action: (np.array([7.0, 7.0]), 7.0, False, False, {})
    assert direct(limited).step(0)[1] == 7.0


@pytest.mark.parametrize("name", ["step", "reset"])
def test_what_somebody_put_into_a_wrapper_is_called(name):
    env = started()
    own = getattr(env.env, name)
    setattr(env.env, name, partial(own))
    assert getattr(direct(env), name) == getattr(env.env, name)


class Unusual(CountTo):
    """Its reset has another default than Gymnasium's."""

    def reset(self, *, seed=7, options=None):
        observation, info = super().reset(seed=seed)
        return observation, info | {"seed": seed}


@pytest.mark.filterwarnings("ignore:.*default seed argument")
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_world_is_reset_with_what_its_wrappers_would_pass_on(wrapped):
    def make():
        return TimeLimit(OrderEnforcing(PassiveEnvChecker(Unusual(3))), 50) if wrapped else Unusual(3)

    seen, expected = [], []
    with stretto.make_vec(make, 1, backend="serial") as envs:
        plain = gymnasium.vector.SyncVectorEnv([make])
        for vector, infos in ((envs, seen), (plain, expected)):
            vector.reset(seed=0)
            for _ in range(100):
                infos.append(vector.step(np.zeros(1, int))[4].get("seed", [()])[0])
    assert set(map(str, seen)) >= {"None" if wrapped else "7"}
    assert seen == expected


def elapsed(envs: stretto.VectorEnv) -> list[int]:
    return list(envs.get_attr("_elapsed_steps"))


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_limit_of_time_has_the_right_count_whenever_somebody_looks(backend, mode):
    makers = [partial(made, 30 + 11 * i, 20 + 7 * i) for i in range(5)]
    with stretto.make_vec(makers, 5, backend=backend, autoreset_mode=mode) as envs:
        plain = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
        for vector in (envs, plain):
            vector.reset(seed=0)
        for step in range(150):
            ours, theirs = envs.step(np.zeros(5, int)), plain.step(np.zeros(5, int))
            for one, other in zip(ours[:4], theirs[:4], strict=True):
                np.testing.assert_array_equal(one, other)
            if step % 7 == 0 or step < 40:
                assert elapsed(envs) == list(plain.get_attr("_elapsed_steps"))
            over = ours.terminations | ours.truncations
            if mode is AutoresetMode.DISABLED and over.any():
                for vector in (envs, plain):
                    vector.reset(options={"reset_mask": over})


def test_steps_of_some_slots_count_as_well():
    with stretto.make_vec(partial(made, 60), 3, backend="serial") as envs:
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(np.zeros(3, int))
        for _ in range(15):
            envs.send(np.zeros(1, int), [1])
            envs.recv()
        assert elapsed(envs) == [40, 55, 40]
        flags = [envs.step(np.zeros(3, int)).truncations.tolist() for _ in range(5)]
        assert flags == [[False] * 3] * 4 + [[False, True, False]]
        envs.send(np.zeros(2, int), [0, 2])
        assert not envs.recv().truncations.any()
        for _ in range(13):
            envs.send(np.zeros(1, int), [2])
            assert not envs.recv().truncations.any()
        envs.send(np.zeros(1, int), [2])
        assert envs.recv().truncations.tolist() == [True]


def spend(env: gymnasium.Env) -> None:
    for _ in range(10):
        env.step(0)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_steps_that_somebody_else_makes_count_as_well(backend):
    with stretto.make_vec(partial(made, 60), 2, backend=backend) as envs:
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(np.zeros(2, int))
        envs.map(spend)
        assert elapsed(envs) == [50, 50]
        flags = [envs.step(np.zeros(2, int)).truncations.tolist() for _ in range(10)]
        assert flags == [[False, False]] * 9 + [[True, True]]


def spend_and_fail(env: gymnasium.Env) -> None:
    spend(env)
    raise ValueError("on purpose")


def test_steps_made_by_something_that_then_fails_count_as_well():
    with stretto.make_vec(partial(made, 60), 2, backend="serial") as envs:
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(np.zeros(2, int))
        with pytest.raises(ValueError, match="on purpose"):
            envs.map(spend_and_fail)
        assert elapsed(envs) == [50, 40]


@pytest.mark.parametrize("most", [sys.maxsize, 1 << 62])
def test_a_limit_that_stands_for_none_may_become_one(most):
    with stretto.make_vec(partial(made, most), 2, backend="serial") as envs:
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(np.zeros(2, int))
        assert elapsed(envs) == [40, 40]
        envs.set_attr("_max_episode_steps", 45)
        flags = [envs.step(np.zeros(2, int)).truncations.tolist() for _ in range(5)]
        assert flags == [[False, False]] * 4 + [[True, True]]


def test_a_limit_of_time_is_kept_when_a_worker_is_killed():
    makers = [partial(made, 25 + 4 * i, 20 + 9 * i) for i in range(4)]
    with (
        stretto.make_vec(makers, 4, backend="serial") as calm,
        stretto.make_vec(makers, 4, backend="process", workers=2, isolate=True) as envs,
    ):
        for vector in (calm, envs):
            vector.reset(seed=0)
        cuts = 0
        for step in range(130):
            if step in (3, 24, 26, 49, 77, 110):
                os.kill(envs.worker_pids[step % 2], signal.SIGKILL)
            one, other = calm.step(np.zeros(4, int)), envs.step(np.zeros(4, int))
            for part, same in zip(one[:4], other[:4], strict=True):
                np.testing.assert_array_equal(part, same)
            cuts += int(one.truncations.sum())
            if step % 9 == 0:
                assert elapsed(calm) == elapsed(envs)
        assert cuts > 5
        assert envs.statistics().restarts == 6


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
