"""stretto.collect as its users call it."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation

import stretto
from stretto import collect
from stretto.errors import RunsHere, UsageError
from tests.collection.plain import plain_rollouts
from tests.collection.test_collector import Chance
from tests.worlds import CountTo, Crowd, Drift, TaskWorld, Timetable, World, makes


class SetTask(World):
    """Is given its task by a method, before it is reset; an episode lasts as many steps as it says."""

    task = 0

    def set_task(self, task):
        self.task = task

    def see(self):
        return np.array([self.steps, self.task], np.float64)

    def move(self, action):
        return self.see(), 0.0, self.steps >= self.task, False, {}


class ResetTask(SetTask):
    set_task = None  # type: ignore[assignment]

    def reset_task(self, task):
        self.task = task


@pytest.mark.parametrize("world", [SetTask, ResetTask])
def test_a_world_is_given_its_task_by_the_method_that_it_has(world):
    found = collect(world, "random", 6, tasks=lambda index, stream: index + 1, num_envs=2, backend="serial")
    assert found.lengths.tolist() == [1, 2, 3, 4, 5, 6]
    assert [set(one.observations[:, 1]) for one in found] == [{float(index + 1)} for index in range(6)]


def test_tasks_of_a_list_are_drawn_by_each_rollout_for_itself():
    tasks = [{"goal": 3}, {"goal": 4}, {"goal": 5}]
    few, many = (collect(TaskWorld3, "random", count, tasks=tasks, backend="serial") for count in (8, 20))
    assert many.tasks[:8] == few.tasks
    assert all(task in tasks for task in many.tasks)
    assert len({task["goal"] for task in many.tasks}) == 3


class TaskWorld3(TaskWorld):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"task": options["task"]["goal"]})


@pytest.mark.parametrize("world", [makes(CountTo, 100), Crowd, makes(Timetable, "abc abc abc abc")])
def test_episodes_end_after_max_steps_and_are_truncated_then(world):
    found = collect(world, "random", 3, max_steps=2, num_envs=2, backend="serial")
    assert found.lengths.tolist() == [2, 2, 2]
    for rollout in found:
        for one in rollout.agents.values():
            assert one.truncated.sum() + one.terminated.sum() == 1


def test_agents_can_follow_different_policies():
    wanted = collect(Crowd, "random", 4, num_envs=2, backend="serial")
    policies = {"lion_0": "random", "lion_1": "noop", "mouse_0": "random", "mouse_1": "random"}
    found = collect(Crowd, policies, 4, num_envs=2, backend="serial")
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one.agents["lion_0"].actions, other.agents["lion_0"].actions)
        follower = one.agents["lion_1"]
        assert np.array_equal(follower.actions, follower.observations["action_mask"].argmax(-1))  # the first allowed
    with pytest.raises(UsageError, match="got none for mouse_0, lion_1, mouse_1; add them"):
        collect(Crowd, {"lion_0": "random"}, 1, backend="serial")


def test_a_vector_environment_is_used_as_it_is_and_left_open():
    with stretto.make_vec(makes(Drift, 5), 3, backend="serial") as envs:
        found = collect(envs, "random", 7)
        again = collect(envs, "random", 7)
        with pytest.raises(UsageError, match="used as it is, got workers, max_steps beside it"):
            collect(envs, "random", 7, workers=2, max_steps=3)
    assert found.digest() == again.digest() == collect(makes(Drift, 5), "random", 7, backend="serial").digest()


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="num_rollouts must be at least 1, got 0"):
        collect(Drift, "random", 0)
    with pytest.raises(UsageError, match="tasks must be a list, a function"):
        collect(Drift, "random", 1, tasks=7)
    with pytest.raises(UsageError, match="a list of tasks must have one or more"):
        collect(Drift, "random", 1, tasks=[])


def draws_globally(observation):
    return int(np.random.randint(4))


def test_a_policy_that_draws_from_global_generators_gives_the_same_set_at_any_width():
    one, many = (collect(makes(Drift, 5), draws_globally, 8, num_envs=n, backend="serial") for n in (1, 5))
    assert one.digest() == many.digest()
    assert len({rollout.actions.tobytes() for rollout in one}) > 1


def normalized():
    return NormalizeObservation(Drift(5))


class Grows(Drift):
    """Begins farther from the origin with every episode."""

    episodes = 0

    def see(self):
        return self.state + self.episodes

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed, options=options)


class GrowingCrowd(Crowd):
    resets = 0

    def reset(self, seed=None, options=None):
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def _see(self, agent):
        seen = super()._see(agent)
        return {**seen, "observation": seen["observation"] + self.resets}


@pytest.mark.parametrize(
    ("world", "name"), [(normalized, "NormalizeObservation"), (Grows, "Grows"), (GrowingCrowd, "AgentBlocks")]
)
def test_what_carries_over_is_named_and_a_world_for_every_rollout_mends_it(world, name):
    with pytest.warns(stretto.WorldCarriesOver, match=f"{name} carries something from one episode into the next"):
        collect(world, "random", 6, num_envs=1, backend="serial")
    one, many = (collect(world, "random", 6, num_envs=n, backend="serial", fresh_worlds=True) for n in (1, 4))
    assert one.digest() == many.digest()


@pytest.mark.parametrize("wait", ["auto", "lockstep", "ready-first", "whole"])
@pytest.mark.parametrize(
    "options", [{"backend": "serial"}, {"backend": "process", "workers": 2}], ids=["serial", "process"]
)
def test_the_set_does_not_depend_on_the_way_to_wait(wait, options):
    wanted = plain_rollouts(makes(Drift, 6), Chance, 9, episodes=2)
    found = collect(makes(Drift, 6), Chance, 9, episodes_per_task=2, wait=wait, num_envs=4, **options)
    assert found.digest() == wanted.digest()


def test_a_way_to_wait_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="wait must be one of auto, lockstep, ready-first, whole, got 'never'"):
        collect(Drift, "random", 1, wait="never")


def test_what_cannot_be_sent_to_workers_is_played_in_the_caller():
    lock = threading.Lock()

    def make():
        assert lock
        return Drift(5)

    with pytest.warns(RunsHere, match="rollouts are played in this process alone: TypeError"):
        found = collect(make, Chance, 5, budget=stretto.CpuBudget(2), check_reuse=False)
    assert found.digest() == plain_rollouts(makes(Drift, 5), Chance, 5).digest()


class Crashes(CountTo):
    """Ends its process in its third step."""

    def move(self, action):
        if self.steps == 3:
            os._exit(7)
        return super().move(action)


class CrashesAtOnce(CountTo):
    """Ends the process in which it is built, if that is not the one that has the tests."""

    def __init__(self, tests):
        super().__init__(3)
        if os.getpid() == tests:
            raise AssertionError("it was built in the caller")
        os._exit(7)


@pytest.mark.parametrize("way", [{"isolate": True}, {"backend": "process"}, {"wait": "lockstep", "isolate": True}])
def test_a_world_that_ends_the_process_in_which_it_is_built_ends_no_other(way, tmp_path):
    for folder in ({}, {"out": tmp_path / "rollouts"}):
        with pytest.raises(stretto.WorkerDied, match="exited with code 7"):
            collect(makes(CrashesAtOnce, os.getpid()), "random", 2, max_restarts=0, check_reuse=False, **way, **folder)


def test_a_world_that_crashes_while_it_is_built_is_found_by_the_check():
    with (
        pytest.warns(stretto.StrettoWarning, match=r"kept out of this process \(isolate=True\).*exited with code 7"),
        pytest.raises(stretto.WorkerDied, match="exited with code 7"),
    ):
        collect(makes(CrashesAtOnce, os.getpid()), "random", 2, max_restarts=0)


def test_a_world_that_ends_the_process_in_which_it_is_checked_is_kept_out_of_the_caller_s():
    with (
        pytest.warns(stretto.StrettoWarning, match=r"kept out of this process \(isolate=True\).*exited with code 7"),
        pytest.raises(stretto.WorkerDied, match="exited with code 7"),
    ):
        collect(makes(Crashes, 9), "random", 2, max_restarts=0)
