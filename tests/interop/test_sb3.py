"""Ours as a Stable-Baselines3 VecEnv: what its own DummyVecEnv does, step by step, on every backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

pytest.importorskip("stable_baselines3")

import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize

import stretto
from stretto import AutoresetMode, UsageError
from stretto.interop.sb3 import StrettoVecEnv, sb3_vec_env
from tests.interop.walk import make_cartpole, make_hopper, make_lake, make_pendulum, make_walk
from tests.worlds import Crowd

torch.set_num_threads(1)  # networks this small only wait for further ones

every_backend = pytest.mark.parametrize(
    "options",
    [
        {"backend": "serial"},
        {"backend": "thread", "workers": 2},
        {"backend": "process", "workers": 2},
        {"backend": "process", "workers": 2, "isolate": True},
    ],
    ids=["serial", "thread", "process", "isolate"],
)


# ---- equality ----


@every_backend
@pytest.mark.parametrize("make", [make_cartpole, make_pendulum, make_lake, make_walk, make_hopper])
def test_every_step_is_that_of_a_dummy_vec_env(make, options):
    dummy, ours = DummyVecEnv([make] * 3), sb3_vec_env(make, 3, monitor=False, **options)
    try:
        assert ours.observation_space == dummy.observation_space
        assert ours.action_space == dummy.action_space
        assert ours.metadata == dummy.metadata
        assert ours.seed(5) == dummy.seed(5)
        assert_same(ours.reset(), dummy.reset())
        assert_same(ours.reset_infos, dummy.reset_infos)
        ours.action_space.seed(0)
        episodes = 0
        for _ in range(60):
            actions = np.stack([ours.action_space.sample() for _ in range(3)])
            one, two = ours.step(actions), dummy.step(actions)
            assert_same(one, two)
            assert one[1].dtype == two[1].dtype
            assert one[2].dtype == two[2].dtype
            assert_same(ours.reset_infos, dummy.reset_infos)
            episodes += np.count_nonzero(one[2])
        assert episodes >= 3
    finally:
        dummy.close()
        ours.close()


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, two in zip(ours, theirs, strict=True):
            assert_same(one, two)
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    else:
        assert ours == theirs
        assert type(ours) is type(theirs)


@every_backend
def test_the_last_observation_is_kept_although_the_world_writes_the_next_one_over_it(options):
    # DummyVecEnv gives the first observation of the next episode here.
    with closing(sb3_vec_env(make_walk, 2, env_kwargs={"goal": 3, "reuses": True}, **options)) as envs:
        envs.set_options({"start": 2})
        envs.reset()
        _, _, dones, infos = envs.step(np.ones(2, int))
        assert dones.all()
        for info in infos:
            np.testing.assert_array_equal(info["terminal_observation"]["place"], [3.0, 3.0])


@every_backend
def test_what_a_step_returned_is_not_changed_by_later_ones(options):
    with closing(sb3_vec_env(make_walk, 2, **options)) as envs:
        envs.seed(0)
        envs.reset()
        kept = []
        for _ in range(9):
            observations, rewards, dones, infos = envs.step(np.ones(2, int))
            kept.append((observations, rewards, dones, infos, repr((observations, rewards, dones, infos))))
        assert any(done for _, _, dones, _, _ in kept for done in dones)
        for *values, before in kept:
            assert repr(tuple(values)) == before


class closing:  # noqa: N801  reads like contextlib's, but returns the environments with their type
    def __init__(self, envs: StrettoVecEnv) -> None:
        self.envs = envs

    def __enter__(self) -> StrettoVecEnv:
        return self.envs

    def __exit__(self, *_: object) -> None:
        self.envs.close()


# ---- resets ----


@every_backend
def test_options_are_for_the_next_reset_alone_and_each_environment_may_have_its_own(options):
    with closing(sb3_vec_env(make_walk, 3, monitor=False, **options)) as envs:  # SB3's wrappers hide reset_infos
        envs.seed(0)
        envs.set_options([{"start": 1}, {}, {"start": 2}])
        envs.reset()
        assert [info["start"] for info in envs.reset_infos][::2] == [1, 2]
        envs.set_options({"start": 0})
        np.testing.assert_array_equal(envs.reset()["place"], np.zeros((3, 2)))
        envs.seed(0)
        fresh = envs.reset()["place"]
        envs.seed(0)
        np.testing.assert_array_equal(envs.reset()["place"], fresh)


def test_seeds_are_used_once():
    with closing(sb3_vec_env(make_walk, 2, backend="serial", monitor=False)) as envs:
        assert envs.seed(7) == [7, 8]
        envs.reset()
        assert [info["seeded"] for info in envs.reset_infos] == [True, True]
        envs.reset()
        assert [info["seeded"] for info in envs.reset_infos] == [False, False]


# ---- questions to the worlds ----


@every_backend
def test_attributes_and_methods_of_some_or_all_environments(options):
    with closing(sb3_vec_env(make_walk, 3, **options)) as envs:
        envs.reset()
        assert envs.get_attr("goal") == [4, 4, 4]
        assert envs.get_attr("goal", 1) == [4]
        envs.set_attr("goal", 9, indices=[0, 2])
        assert envs.get_attr("goal") == [9, 4, 9]
        envs.set_attr("goal", 5)
        assert envs.get_attr("goal", [2, 0]) == [5, 5]
        assert envs.env_method("count_call") == [1, 1, 1]
        assert envs.env_method("count_call", 10, indices=[2, 0]) == [11, 11]
        assert envs.env_method("count_call", by=2, indices=1) == [3]
        assert envs.get_attr("called") == [11, 3, 11]


@every_backend
def test_asking_whether_there_is_a_method_does_not_call_it(options):
    with closing(sb3_vec_env(make_walk, 2, **options)) as envs:
        assert envs.has_attr("count_call")
        assert not envs.has_attr("nothing_of_the_kind")
        with pytest.raises(AttributeError, match="nothing_of_the_kind"):
            envs.get_attr("nothing_of_the_kind")
        assert envs.get_attr("called") == [0, 0]
        envs.reset()
        envs.step(np.ones(2, int))


@every_backend
def test_wrappers_are_recognised(options):
    with closing(sb3_vec_env(make_walk, 2, **options)) as envs:
        assert envs.env_is_wrapped(TimeLimit) == [True, True]
        assert envs.env_is_wrapped(gymnasium.Wrapper, indices=0) == [True]
        assert envs.env_is_wrapped(Monitor) == [False, False]


@pytest.mark.usefixtures("workers_without_torch")
def test_the_workers_need_not_import_torch():
    with closing(sb3_vec_env("CartPole-v1", 2, backend="process", isolate=True)) as envs:
        assert envs.env_is_wrapped(Monitor) == [False, False]
        assert envs.has_attr("gravity")
        assert envs.get_attr("gravity") == [9.8, 9.8]
        envs.reset()
        envs.step(np.ones(2, int))
        seen = envs.vector_env.map(eval_in_worker("'torch' in __import__('sys').modules"))
        assert seen == (False, False)


def eval_in_worker(expression: str) -> Any:
    """Return a function that travels by value: this module imports SB3, and with it torch."""
    return eval(f"lambda env: {expression}", {})


def test_what_was_set_and_called_in_some_is_done_again_when_their_worker_died():
    with closing(sb3_vec_env(make_walk, 4, backend="process", workers=2, isolate=True)) as envs:
        envs.seed(0)
        envs.reset()
        envs.step(np.zeros(4, int))
        envs.set_attr("goal", 50, indices=[1, 3])
        envs.env_method("count_call", 5, indices=[0, 3])
        expected = [envs.get_attr("goal"), envs.get_attr("called")]
        for pid in envs.vector_env.worker_pids:
            os.kill(pid, signal.SIGKILL)
        envs.step(np.zeros(4, int))
        assert [envs.get_attr("goal"), envs.get_attr("called")] == expected
        assert envs.vector_env.statistics().restarts == 2


@every_backend
def test_images_come_from_every_environment(options):
    with closing(sb3_vec_env(make_walk, 2, env_kwargs={"render_mode": "rgb_array"}, **options)) as envs:
        envs.set_options([{"start": 1}, {"start": 2}])
        envs.reset()
        assert [int(image[0, 0, 0]) for image in envs.get_images()] == [1, 2]
        tiled = envs.render("rgb_array")
        assert tiled is not None
        assert tiled.ndim == 3


def test_without_a_render_mode_images_are_refused_with_a_warning():
    with closing(sb3_vec_env(make_walk, 2, backend="serial")) as envs:
        assert envs.render_mode is None
        with pytest.warns(UserWarning, match="rgb_array"):
            assert envs.get_images() == [None, None]


# ---- with what Stable-Baselines3 puts on top ----


@every_backend
def test_the_vec_wrappers_of_sb3_see_what_they_see_on_a_dummy_vec_env(options):
    makers = [make_cartpole] * 2
    dummy = VecFrameStack(VecNormalize(VecMonitor(DummyVecEnv(makers))), 2)
    ours = VecFrameStack(VecNormalize(sb3_vec_env(make_cartpole, 2, **options)), 2)
    try:
        ours.seed(3), dummy.seed(3)
        assert_same(ours.reset(), dummy.reset())
        finished = 0
        for number in range(80):
            actions = np.array([number % 2, number % 3 == 0], int)
            one, two = ours.step(actions), dummy.step(actions)
            for info in (*one[3], *two[3]):
                if "episode" in info:
                    finished += 1
                    del info["episode"]["t"]  # seconds since the start
            assert_same(one, two)
        assert finished >= 4
    finally:
        dummy.close()
        ours.close()


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_an_algorithm_learns_on_it(algorithm):
    with closing(sb3_vec_env("CartPole-v1", 8, backend="process", workers=2)) as envs:
        model = algorithm("MlpPolicy", envs, n_steps=32, seed=0, device="cpu")
        before = [parameter.detach().clone() for parameter in model.policy.parameters()]
        model.learn(8 * 32 * 3)
        assert model.num_timesteps >= 8 * 32 * 3
        assert len(model.ep_info_buffer) > 0  # from which SB3 computes its ep_rew_mean
        after = list(model.policy.parameters())
        assert any(not np.array_equal(a.detach(), b) for a, b in zip(after, before, strict=True))


def test_ppo_learns_the_same_on_it_as_on_a_dummy_vec_env():
    def weights(envs: Any) -> list[Any]:
        model = PPO("MlpPolicy", envs, n_steps=16, n_epochs=2, batch_size=32, seed=1, device="cpu")
        model.learn(4 * 16 * 2)
        envs.close()
        return [parameter.detach().numpy() for parameter in model.policy.parameters()]

    dummy = weights(DummyVecEnv([make_cartpole] * 4))
    assert_same(weights(sb3_vec_env(make_cartpole, 4, backend="process", workers=2)), dummy)


def test_a_policy_can_be_evaluated_on_it():
    with closing(sb3_vec_env("CartPole-v1", 2, backend="serial")) as envs:
        model = PPO("MlpPolicy", envs, n_steps=16, batch_size=32, device="cpu")
        mean, _ = evaluate_policy(model, envs, n_eval_episodes=4)
        assert mean > 0


# ---- what cannot be ----


def test_another_autoreset_mode_is_refused_and_nothing_is_left_open():
    with pytest.raises(UsageError, match="SAME_STEP"):
        sb3_vec_env("CartPole-v1", 2, backend="process", autoreset_mode=AutoresetMode.NEXT_STEP)


def test_worlds_with_many_agents_are_refused_with_what_can_be_done():
    with pytest.raises(UsageError, match=r"got worlds with agents by name; write a gymnasium\.Env around such a world"):
        sb3_vec_env(Crowd, 2, backend="serial")


def test_what_is_no_vector_env_is_refused():
    with pytest.raises(UsageError, match="SyncVectorEnv"):
        StrettoVecEnv(gymnasium.vector.SyncVectorEnv([make_cartpole]))


def test_waiting_without_actions_is_refused():
    with closing(sb3_vec_env("CartPole-v1", 1)) as envs:
        envs.reset()
        with pytest.raises(UsageError, match="step_async"):
            envs.step_wait()


def test_closing_it_twice_is_fine_and_a_vector_env_of_ones_own_can_be_wrapped():
    own = stretto.make_vec("CartPole-v1", 2, backend="serial", autoreset_mode="SameStep")
    envs = StrettoVecEnv(own)
    assert envs.vector_env is own
    envs.close()
    envs.close()


def test_without_sb3_the_import_says_what_to_install():
    code = "import sys; sys.modules['stable_baselines3'] = None; import stretto.interop.sb3"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'stretto[sb3]'" in done.stderr


def test_importing_stretto_imports_neither_sb3_nor_torch():
    code = "import sys, stretto; print([n for n in ('stable_baselines3', 'torch') if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
