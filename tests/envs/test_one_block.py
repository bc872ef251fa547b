"""Worlds that are one block, wherever it runs; the caller steps it without anybody in between if it has it itself."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import stretto
from stretto import trace
from stretto.testing.values import difference
from tests.envs.batched_worlds import CountingTogether, Reusing, Worded, trajectory

ONE_BLOCK = [
    {"backend": "serial"},
    {"backend": "thread", "workers": 1},
    {"backend": "process", "workers": 1},
    {"backend": "process", "workers": 1, "isolate": True},
    {"backend": "process", "workers": 1, "transport": "message"},
    {"backend": "process", "workers": 1, "transport": "message", "isolate": True},
]


@pytest.mark.parametrize("how", ONE_BLOCK, ids=str)
@pytest.mark.parametrize("count", [3, 300, 5_000])
def test_what_was_given_never_changes_and_lies_in_c_order_wherever_one_block_runs(how, count):
    with stretto.make_vec(Reusing, count, vectorized=1, **how) as envs:
        envs.reset(seed=0)
        actions, given = np.zeros(count, np.int64), []
        for action in [0, 1, 2, 1, 0]:
            actions[:] = action  # the world may keep its actions, and the caller may change them
            given.append(envs.step(actions))
    for step, last in zip(given, [0, 0, 1, 2, 1], strict=True):
        assert step.observations.flags.c_contiguous
        assert (step.observations == last).all()
        assert (step.rewards == last).all()
        assert (step.terminations == (last == 2)).all()
        assert not step.truncations.any()
        assert [array.dtype for array in step[:4]] == [np.float32, np.float64, bool, bool]


def test_blocks_that_keep_their_actions_see_no_later_ones():
    with stretto.make_vec(Reusing, 4, vectorized=2, backend="serial") as envs:
        envs.reset(seed=0)
        assert [envs.step(np.full(4, k)).rewards[0] for k in (1, 2, 1)] == [0, 1, 2]


@pytest.mark.parametrize("word", [True, False], ids=["with texts", "arrays alone"])
def test_one_block_with_several_parts_is_the_same_wherever_it_runs(word):
    seen = []
    for how in ONE_BLOCK:
        with stretto.make_vec(Worded, 3, vectorized=1, env_kwargs={"word": word}, **how) as envs:
            seen.append(trajectory(envs, 5))
    assert [difference(other, seen[0]) for other in seen[1:]] == [None] * 5
    first, last = seen[0][1][0]["number"], seen[0][-1][0]["number"]
    assert (first < last).all()
    assert (seen[0][-1][4]["total"] == seen[0][-1][1]).all()


def test_ctrl_c_in_the_only_block_is_the_callers_and_a_reset_goes_on():
    class Interrupted(CountingTogether):
        def step(self, actions):
            if actions[0] == 2:
                raise KeyboardInterrupt
            return super().step(actions)

    with stretto.make_vec(Interrupted, 2, vectorized=1, backend="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.full(2, 2))
        with pytest.raises(stretto.ResetNeeded):
            envs.step(np.zeros(2, np.int64))
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))
        assert envs.statistics().steps == 2


def test_steps_of_the_only_block_are_counted_and_traced():
    with stretto.make_vec(CountingTogether, 2, vectorized=1, backend="serial") as envs:
        envs.reset(seed=0)
        log = trace.start()
        try:
            for _ in range(9):
                envs.step(np.zeros(2, np.int64))
        finally:
            trace.stop()
        assert envs.statistics().steps == 2 * 7  # the fourth and the eighth only reset
        assert envs.statistics().episodes == 2 * 2
        assert envs.episodes.tolist() == [2, 2]
    assert sorted(name for name, *_ in log.spans) == ["signal"] * 9 + ["step"] * 9


def test_native_threads_are_capped_while_the_only_block_is_stepped():
    class Asking(CountingTogether):
        def step(self, actions):
            self.threads = {library["num_threads"] for library in threadpool_info()}
            return super().step(actions)

    with stretto.make_vec(Asking, 2, vectorized=1, backend="serial") as envs, threadpool_limits(2):
        before = [library["num_threads"] for library in threadpool_info()]
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))
        assert envs.get_attr("threads")[0] == {1}
        assert [library["num_threads"] for library in threadpool_info()] == before


def test_a_world_keeps_its_own_look_at_actions_that_a_wrapper_may_have_changed():
    class Doubling(gymnasium.vector.VectorActionWrapper):
        def actions(self, actions):
            return actions * 2

    with stretto.make_vec("CartPole-v1", 2, vectorized=1, backend="serial", wrappers=[Doubling]) as envs:
        envs.reset(seed=0)
        with pytest.raises(AssertionError, match="invalid"):
            envs.step(np.ones(2, np.int64))
