"""A lost world is brought back in another process; and the caller's share is moved to one.

What it takes to bring a world back, and what is said where that cannot be done, is in tests/envs/test_restorer.py.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.testing import difference, play, sample_actions
from tests.faults.worlds import OwnGenerator, Unrepeatable
from tests.workers.fake import kill_all
from tests.worlds import Drift, GlobalDrift, ReusesItsArray

pytestmark = pytest.mark.timeout(60)

ISOLATED = {"backend": "process", "workers": 2, "isolate": True}


@pytest.mark.parametrize("world", [Drift, GlobalDrift, OwnGenerator, ReusesItsArray], ids=lambda world: world.__name__)
def test_a_world_is_restored_in_another_process_whatever_it_draws_from(world):
    when = {0, 9, 10, 25}
    with stretto.make_vec(world, 3, backend="serial") as envs:
        actions = sample_actions(envs, 30)
        expected = play(envs, actions, 5)
    with stretto.make_vec(world, 3, **ISOLATED) as envs:
        run = play(envs, actions, 5, before_step=lambda number: kill_all(envs) if number in when else None)
        run.check_same(expected, "a run with deaths and one without")
        assert envs.statistics().truncations == 0
        assert envs.statistics().restarts == 2 * len(when)


def test_the_steps_that_are_kept_do_not_grow_without_end():
    with stretto.make_vec("CartPole-v1", 4, backend="serial") as envs:
        envs.reset(seed=0)
        actions = np.arange(4) % 2
        for _ in range(8_000):
            envs.step(actions)
        assert len(envs._engine.state.history._entries.items) < 6_000


# ---- moving the caller's share out, for send ----


@pytest.mark.parametrize("layout", [{"backend": "thread"}, {"backend": "process"}], ids=str)
def test_the_callers_share_goes_on_elsewhere_where_it_was(layout):
    with stretto.make_vec(Drift, 4, backend="serial") as envs:
        actions = sample_actions(envs, 30)
        expected = play(envs, actions, 5)
    with stretto.make_vec(Drift, 4, workers=2, **layout) as envs:
        first = [envs.reset(seed=5)] + [envs.step(action) for action in actions[:10]]
        for action in actions[10:]:
            envs.send(action)
            first.append(envs.recv(ordered=True)[:5])
        assert envs.statistics().truncations == 0
    assert difference([tuple(moment) for moment in first], [moment[:-1] for moment in expected.moments]) is None


def test_worlds_of_a_thread_move_as_they_are():
    with stretto.make_vec(Unrepeatable, 4, backend="thread", workers=2) as envs:
        envs.reset()
        before = envs.map(id)
        envs.send(np.zeros(4, int))
        envs.recv()
        assert envs.map(id) == before


def test_a_share_that_cannot_be_restored_stays_in_the_caller_and_says_so():
    with stretto.make_vec(Unrepeatable, 4, backend="process", workers=2) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, int))
        with pytest.warns(stretto.FewerWorkers, match="does not repeat itself"):
            envs.send(np.zeros(4, int))
        result = envs.recv()
        assert sorted(result.ids) == [0, 1, 2, 3]
        assert result.observations[:, 0].tolist() == [2, 2, 2, 2]
        envs.send(np.zeros(4, int))  # it is not tried again
        envs.recv(ready=2)
        envs.recv(ready=2)
        envs.step(np.zeros(4, int))
        assert envs.statistics().truncations == 0
        assert len(envs.worker_pids) == 1


def test_a_vector_environment_in_a_world_of_a_vector_environment_works():
    class Nested(gymnasium.Env):
        def __init__(self) -> None:
            self.inner = stretto.make_vec(Drift, 2, backend="process", workers=2)
            self.observation_space, self.action_space = self.inner.observation_space, spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.inner.reset(seed=seed)[0], {}

        def step(self, action: Any) -> Any:
            observation, rewards, *_ = self.inner.step(np.full(2, action))
            return observation, float(rewards.sum()), False, False, {}

        def close(self) -> None:
            self.inner.close()

    with stretto.make_vec(Nested, 2, **ISOLATED) as envs:
        envs.reset(seed=0)
        envs.step([0, 1])
        kill_all(envs)
        envs.step([1, 0])
        assert envs.statistics().truncations == 0
