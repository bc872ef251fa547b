"""Pools of EnvPool are groups of ours: in vector environments, evaluations and collections, under the same checks."""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np
import pytest

import stretto
from stretto.errors import InvalidAction, UsageError

if importlib.util.find_spec("envpool") is None:
    pytest.skip("envpool is not installed", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about parts of itself
    import envpool

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered")


def test_a_pool_gives_what_envpool_itself_gives():
    plain = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=5, seed=9)
    with stretto.make_vec("envpool:CartPole-v1", 5) as envs:
        assert "vectorized, in 1 block" in envs.choice
        expected, _ = plain.reset()
        found, _ = envs.reset(seed=9)
        assert np.array_equal(found, expected)
        ended = 0
        for t in range(60):
            actions = np.full(5, t % 2)
            expected = plain.step(actions)
            found = envs.step(actions)
            for one, other in zip(found[:4], expected[:4], strict=True):
                assert np.array_equal(one, other)
            assert not found.infos
            ended += int(expected[2].sum())
        assert ended
        again, _ = envs.reset(seed=9)
        assert np.array_equal(again, plain.reset()[0]) or ended  # a seed begins its stream anew
    plain.close()


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"backend": "process", "workers": 2, "isolate": True}])
def test_blocks_of_a_pool_give_the_same_on_every_backend(options):
    runs = []
    for given in (options, {"backend": "serial"}):
        with stretto.make_vec("envpool:CartPole-v1", 6, vectorized=2, **given) as envs:
            run = [envs.reset(seed=1)[0]]
            run += [np.array(envs.step(np.arange(6) % 2).observations) for _ in range(30)]
        runs.append(run)
    assert all(np.array_equal(one, other) for one, other in zip(*runs, strict=True))


def test_actions_are_checked_as_everywhere():
    with stretto.make_vec("envpool:CartPole-v1", 3) as envs:
        envs.reset(seed=0)
        with pytest.raises(InvalidAction, match="slot 1"):
            envs.step([0, 7, 0])


def test_policies_are_evaluated_and_experience_is_collected():
    runs = [stretto.evaluate("envpool:CartPole-v1", "random", episodes=4, jobs=jobs) for jobs in (0, 2)]
    assert [r.rewards for r in runs[0].records] == [r.rewards for r in runs[1].records]
    assert len({record.steps for record in runs[0].records}) > 1
    found = [
        stretto.collect("envpool:CartPole-v1", "random", 5, num_envs=count, backend="serial").lengths.tolist()
        for count in (1, 3)
    ]
    assert found[0] == found[1]


def test_a_pool_that_does_not_exist_is_told():
    with pytest.raises(Exception, match="NoSuchWorld"):
        stretto.make_vec("envpool:NoSuchWorld-v1", 2)
    with pytest.raises(UsageError, match="tasks needs environments that are reset one by one"):
        stretto.make_vec("envpool:CartPole-v1", 2, vectorized=True, tasks=[1])
