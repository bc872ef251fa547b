"""When an episode ends and the next begins: the three autoreset modes, explicit and masked resets."""

from __future__ import annotations

import os

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto.testing import check_same
from tests.backends import every_backend
from tests.worlds import CountTo, Drift, ReusesItsArray, TaskWorld, makes


@every_backend
def test_next_step_shows_the_last_observation_and_then_the_first(options):
    with stretto.make_vec([makes(CountTo, 2), makes(CountTo, 3)], 2, **options) as envs:
        envs.reset(seed=0)
        envs.step([1, 1])
        over = envs.step([1, 1])
        assert (over.observations.tolist(), over.terminations.tolist()) == ([[2, 1], [2, 1]], [True, False])
        begun = envs.step([3, 3])
        assert begun.observations.tolist() == [[0, 0], [3, 3]]
        assert (begun.rewards.tolist(), begun.terminations.tolist()) == ([0, 3], [False, True])
        assert envs.step([1, 1]).observations.tolist() == [[1, 1], [0, 0]]
        statistics = envs.statistics()
        assert (statistics.steps, statistics.episodes) == (6, 2)


@every_backend
def test_same_step_shows_the_first_observation_and_keeps_the_last_aside(options):
    with stretto.make_vec([makes(CountTo, 2), makes(CountTo, 3)], 2, autoreset_mode="SameStep", **options) as envs:
        envs.reset(seed=0)
        assert "final_obs" not in envs.step([1, 1]).infos
        over = envs.step([1, 1])
        assert over.observations.tolist() == [[0, 0], [2, 1]]
        assert (over.rewards.tolist(), over.terminations.tolist()) == ([1, 1], [True, False])
        assert over.infos["_final_obs"].tolist() == [True, False]
        assert over.infos["final_obs"][0].tolist() == [2, 1]
        assert over.infos["final_obs"][1] is None
        assert (envs.statistics().steps, envs.statistics().episodes) == (4, 1)


@every_backend
def test_the_last_observation_is_a_copy_even_of_a_world_that_reuses_its_array(options):
    with stretto.make_vec(makes(ReusesItsArray, 2), 2, autoreset_mode="SameStep", **options) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        last = envs.step([0, 0]).infos["final_obs"]
        assert [row.tolist() for row in last] == [[2, -2], [2, -2]]


@every_backend
def test_disabled_refuses_to_step_an_episode_that_is_over(options):
    with stretto.make_vec([makes(CountTo, 1), makes(CountTo, 2)], 2, autoreset_mode="Disabled", **options) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        with pytest.raises(stretto.ResetNeeded, match=r"slot 0 was not; pass options=\{'reset_mask'"):
            envs.step([0, 0])
        envs.reset(seed=0)
        over = envs.step([1, 1])
        first, _ = envs.reset(options={"reset_mask": over.terminations})
        assert first.tolist() == [[0, 0], [1, 1]]
        assert envs.step([2, 2]).observations.tolist() == [[1, 2], [2, 2]]


@every_backend
@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_an_explicit_reset_after_done_does_not_swallow_the_next_action(mode, options):
    with stretto.make_vec(makes(CountTo, 2), 2, autoreset_mode=mode, **options) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        assert envs.step([0, 0]).terminations.all()
        envs.reset()
        assert envs.step([3, 3]).observations.tolist() == [[1, 3], [1, 3]]


@every_backend
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_a_masked_reset_leaves_the_other_slots_where_they_are(mode, options):
    with stretto.make_vec(makes(Drift, 10_000), 4, autoreset_mode=mode, **options) as envs:
        envs.reset(seed=[1, 2, 3, 4])
        before = envs.step([0, 0, 0, 0])
        mask = np.array([False, True, False, True])
        after, infos = envs.reset(seed=[9, 2, 9, 4], options={"reset_mask": mask, "else": 1})
        check_same(after[~mask], before.observations[~mask], "the slots that were not to be reset")
        check_same(after[mask], np.stack([Drift().reset(seed=seed)[0] for seed in (2, 4)]), "those that were")
        assert infos["_start"].tolist() == mask.tolist()
        check_same(envs.step([0] * 4).observations[1], stepped_once(seed=2), "the next step")


def stepped_once(seed):
    world = Drift()
    world.reset(seed=seed)
    return world.step(0)[0]


@pytest.mark.parametrize(
    "mask",
    [[True, False], np.array([1, 0]), np.array([True]), np.array([[True, False]]), np.array([False, False]), None],
    ids=str,
)
def test_a_mask_that_is_none_is_refused(mask):
    with stretto.make_vec(Drift, 2, backend="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.UsageError, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})
        envs.step([0, 0])


@every_backend
def test_the_callers_options_are_left_as_they_were(options):
    given = {"reset_mask": np.array([True, False]), "else": 1}
    with stretto.make_vec(Drift, 2, **options) as envs:
        envs.reset(seed=0)
        envs.reset(options=given)
    assert list(given) == ["reset_mask", "else"]


def test_a_worker_that_was_given_up_is_the_reason_why_all_must_be_reset():
    with stretto.make_vec(Drift, 2, backend="process", isolate=True, on_crash="raise", max_restarts=0) as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.WorkerDied):
            envs.map(lambda env: os._exit(7))
        with pytest.raises(stretto.ResetNeeded, match="not only some, because a worker was lost"):
            envs.reset(options={"reset_mask": np.array([True, False])})


@every_backend
def test_the_first_reset_must_be_of_all(options):
    with stretto.make_vec(Drift, 2, **options) as envs:
        with pytest.raises(stretto.ResetNeeded, match="not only some, because they were not reset yet"):
            envs.reset(options={"reset_mask": np.array([True, False])})
        with pytest.raises(stretto.ResetNeeded, match="they were not reset yet"):
            envs.step([0, 0])
        with pytest.raises(stretto.ResetNeeded, match="they were not reset yet"):
            envs.send([0, 0])
        envs.reset(seed=0)


@every_backend
def test_truncation_and_termination_are_told_apart(options):
    factories = [makes(CountTo, 1), makes(CountTo, 1, truncates=True)]
    with stretto.make_vec(factories, 2, **options) as envs:
        envs.reset(seed=0)
        step = envs.step([0, 0])
        assert step.terminations.tolist() == [True, False]
        assert step.truncations.tolist() == [False, True]


@every_backend
def test_without_copies_arrays_are_views_of_two_buffers_in_turn(options):
    with stretto.make_vec(makes(CountTo, 99), 3, copy=False, **options) as envs:
        zero, _ = envs.reset(seed=0)
        one = envs.step([1, 1, 1])
        assert zero[0].tolist() == [0, 0]
        two = envs.step([2, 2, 2])
        assert (one.observations[0].tolist(), two.observations[0].tolist()) == ([1, 1], [2, 2])
        assert np.shares_memory(zero, two.observations)
        assert not np.shares_memory(one.observations, two.observations)
        envs.step([3, 3, 3])
        assert two.observations[0].tolist() == [2, 2]
        assert one.observations[0].tolist() == [3, 3]
        for name in ("rewards", "terminations", "truncations"):
            assert not np.shares_memory(getattr(one, name), getattr(two, name))


@every_backend
def test_views_outlive_the_vector_environment(options):
    with stretto.make_vec(makes(CountTo, 99), 3, copy=False, **options) as envs:
        envs.reset(seed=0)
        last = envs.step([1, 2, 3])
    assert last.observations.tolist() == [[1, 1], [1, 2], [1, 3]]


@every_backend
def test_copies_are_the_callers_to_write_into(options):
    with stretto.make_vec(makes(CountTo, 99), 2, **options) as envs:
        envs.reset(seed=0)
        step = envs.step([1, 1])
        for array in step[:4]:
            array[:] = 0
        assert envs.step([2, 2]).observations.tolist() == [[2, 2], [2, 2]]


@every_backend
def test_some_slots_are_reset_each_with_options_of_its_own(options):
    mask = np.array([True, False, True])
    with stretto.make_vec(makes(TaskWorld, 9), 3, **options) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        given = [{"task": 1}, {"task": 2}, None]
        shown, _ = envs.reset(seed=[4, None, 4], options=given, reset_mask=mask)
        assert shown.tolist() == [[0, 1, -1], [1, -1, -1], [0, -1, -1]]
        assert envs.reset(options={"task": 5}, reset_mask=mask)[0][:, 1].tolist() == [5, -1, 5]
        with pytest.raises(stretto.UsageError, match="given once"):
            envs.reset(options={"reset_mask": mask}, reset_mask=mask)
