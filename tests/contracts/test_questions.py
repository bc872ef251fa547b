"""What can be asked of worlds beside their steps."""

from __future__ import annotations

import pytest

import stretto
from tests.backends import every_backend
from tests.worlds import CountTo, Crowd, Drift, makes


@every_backend
def test_a_method_is_called_in_every_world_and_answers_come_in_the_order_of_slots(options):
    with stretto.make_vec([makes(CountTo, limit) for limit in (3, 4, 5)], 3, **options) as envs:
        envs.reset(seed=0)
        assert envs.call("add_to_limit", 10) == (13, 14, 15)
        assert envs.call("add_to_limit", more=1) == (14, 15, 16)
        assert envs.call("limit") == (14, 15, 16)
        assert envs.get_attr("limit") == (14, 15, 16)


@every_backend
def test_attributes_are_set_for_all_or_one_by_one(options):
    with stretto.make_vec(makes(CountTo, 9), 3, **options) as envs:
        envs.reset(seed=0)
        envs.set_attr("limit", 5)
        assert envs.get_attr("limit") == (5, 5, 5)
        envs.set_attr("limit", [1, 2, 3])
        assert envs.get_attr("limit") == (1, 2, 3)
        envs.set_attr("something_new", ("a", "b", "c"))
        assert envs.get_attr("something_new") == ("a", "b", "c")
        with pytest.raises(stretto.UsageError, match="one for each of the 3 environments, got 2"):
            envs.set_attr("limit", [1, 2])
        assert envs.step([0, 0, 0]).terminations.tolist() == [True, False, False]


@every_backend
def test_they_may_be_asked_before_the_first_reset(options):
    with stretto.make_vec(makes(CountTo, 9), 2, **options) as envs:
        assert envs.get_attr("limit") == (9, 9)
        envs.set_attr("limit", 1)
        envs.reset(seed=0)
        assert envs.step([0, 0]).terminations.all()


@every_backend
def test_a_name_that_is_none_says_so_with_the_slot_and_nothing_is_lost(options):
    with stretto.make_vec(makes(CountTo, 9), 2, **options) as envs:
        envs.reset(seed=0)
        envs.step([1, 1])
        with pytest.raises(AttributeError, match="no_such_thing") as raised:
            envs.call("no_such_thing")
        assert raised.value.place.slot == 0
        assert envs.step([2, 2]).observations.tolist() == [[2, 2], [2, 2]]


@every_backend
def test_map_runs_beside_each_world_and_returns_only_what_it_returns(options):
    with stretto.make_vec([makes(CountTo, limit) for limit in (3, 4, 5)], 3, **options) as envs:
        envs.reset(seed=0)
        envs.step([1, 2, 3])
        offset = 10
        assert envs.map(lambda env: (env.unwrapped.limit + offset, env.unwrapped.last_action)) == (
            (13, 1),
            (14, 2),
            (15, 3),
        )


@every_backend
def test_what_a_mapped_function_raises_has_the_slot_and_nothing_is_lost(options):
    def picky(env):
        if env.unwrapped.limit == 4:
            raise LookupError("not this one")

    with stretto.make_vec([makes(CountTo, limit) for limit in (3, 4, 5)], 3, **options) as envs:
        envs.reset(seed=0)
        with pytest.raises(LookupError, match="not this one") as raised:
            envs.map(picky)
        assert raised.value.place.slot == 1
        envs.step([0, 0, 0])


@every_backend
def test_several_agents_are_mapped_as_their_user_knows_them(options):
    with stretto.make_vec(Crowd, 2, **options) as envs:
        envs.reset(seed=0)
        assert envs.map(lambda env: (type(env).__name__, list(env.agents))) == (("Crowd", ["lion_0", "mouse_0"]),) * 2
        assert envs.get_attr("steps") == (0, 0)
        envs.set_attr("length", 7)
        assert envs.call("length") == (7, 7)


@every_backend
def test_frames_come_from_every_world(options):
    with stretto.make_vec(makes(CountTo, 9, render_mode="rgb_array"), 3, **options) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        frames = envs.render()
        assert envs.render_mode == "rgb_array"
        assert [(frame.shape, int(frame.max())) for frame in frames] == [((2, 2, 3), 1)] * 3


@every_backend
def test_statistics_count_real_steps_and_episodes(options):
    with stretto.make_vec(makes(CountTo, 2), 3, **options) as envs:
        assert envs.statistics() == stretto.Statistics()
        envs.reset(seed=0)
        for _ in range(6):  # two steps of an episode, one that only resets, and so on
            envs.step([0, 0, 0])
        assert envs.statistics() == stretto.Statistics(steps=12, episodes=6)
        envs.send([0, 0], [0, 1])
        envs.recv()
        assert (envs.statistics().steps, envs.statistics().episodes) == (14, 6)


def test_worker_pids_are_of_processes_other_than_the_callers():
    import os

    with stretto.make_vec(Drift, 4, backend="process", workers=2) as envs:
        assert len(set(envs.worker_pids) - {os.getpid()}) == 1
        here, there = envs.map(lambda env: os.getpid())[-1], envs.map(lambda env: os.getpid())[0]
        assert (here, there) == (os.getpid(), envs.worker_pids[0])
    with stretto.make_vec(Drift, 4, backend="process", workers=2, isolate=True) as envs:
        assert set(envs.map(lambda env: os.getpid())) == set(envs.worker_pids)
        assert os.getpid() not in envs.worker_pids
    for backend in ("serial", "thread"):
        with stretto.make_vec(Drift, 4, backend=backend) as envs:
            assert envs.worker_pids == []
