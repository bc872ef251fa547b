"""`gymnasium.make_vec("stretto/ID")` makes our vector environments."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import stretto.interop.gymnasium as ours
from stretto.envs.vector import VectorEnv
from tests.worlds import CountTo


@pytest.fixture(autouse=True)
def registry():
    before = dict(gymnasium.registry)
    ours.register()
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_each_id_has_a_name_whose_vector_environment_is_ours():
    with gymnasium.make_vec("stretto/CartPole-v1", num_envs=3) as envs:
        assert isinstance(envs, VectorEnv)
        plain = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
        assert np.array_equal(envs.reset(seed=1)[0], plain.reset(seed=1)[0])
        for _ in range(30):
            for one, other in zip(envs.step([0, 1, 0])[:4], plain.step([0, 1, 0])[:4], strict=True):
                assert np.array_equal(one, other)
        plain.close()


def test_arguments_reach_the_world():
    with gymnasium.make_vec("stretto/CartPole-v1", num_envs=2, sutton_barto_reward=True) as envs:
        envs.reset(seed=0)
        assert envs.step([0, 0])[1].tolist() == [0.0, 0.0]


def test_ids_that_come_later_are_registered_on_request():
    gymnasium.register("Later-v0", entry_point=CountTo)
    assert ours.register(["Later-v0"]) == ["stretto/Later-v0"]
    assert ours.register() == []
    with gymnasium.make_vec("stretto/Later-v0", num_envs=2) as envs:
        envs.reset(seed=0)
    assert gymnasium.make("stretto/Later-v0").unwrapped.limit == 5


def test_the_module_can_be_named_before_the_id():
    with gymnasium.make_vec("stretto.interop.gymnasium:stretto/Acrobot-v1", num_envs=2) as envs:
        assert isinstance(envs, VectorEnv)
