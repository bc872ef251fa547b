"""Worlds of the package gym itself."""

from __future__ import annotations

import numpy as np
import pytest

import stretto
from stretto.testing import check_same, play
from tests.backends import every_backend

pytest.importorskip("gym", reason="the package gym is not installed")


@pytest.mark.filterwarnings("ignore::stretto.errors.ReadAsOldGym")
@every_backend
def test_its_cart_pole_is_that_of_gymnasium(options):
    def make():
        import gym

        return gym.make("CartPole-v1", disable_env_checker=True)

    with stretto.make_vec(make, 2, **options) as envs, stretto.make_vec("CartPole-v1", 2, backend="serial") as plain:
        actions = [np.array([t % 2, (t // 2) % 2]) for t in range(60)]
        check_same(play(envs, actions, 0), play(plain, actions, 0), "60 steps")
