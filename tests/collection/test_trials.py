"""What a policy sees of a trial, and the ways in which a world is given its task."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto import collect
from stretto.adapters.trial_views import ObservationView, TaskForm, TrialView
from stretto.errors import UsageError
from tests.backends import OPTIONS, every_backend, here_and_elsewhere
from tests.collection.plain import plain_rollouts
from tests.collection.test_collector import Chance
from tests.worlds import Crowd, Drift, TaskWorld, Timetable, World, makes


def a_goal(index, stream):
    return {"x": float(stream.normal()), "y": index}


def see_all(observation, boundary, task):
    return np.array([*observation, task["x"], task["y"], boundary], np.float32)


def test_a_policy_sees_its_last_reward_through_a_trial_and_no_longer():
    shown = {"episodes_per_task": 2, "rewards": True, "backend": "serial"}
    for rollout in collect(makes(Drift, 5), "random", 3, **shown):
        assert np.array_equal(rollout.observations[1:, -1], rollout.rewards[:-1].astype(np.float32))
        assert rollout.observations[0, -1] == 0
        assert rollout.last_observations[-1, -1] == np.float32(rollout.rewards[-1])
    (rollout,) = collect(makes(Timetable, "abc abc-abc"), "random", 1, **shown)
    for one in rollout.agents.values():
        assert one.observations[1:, -1].tolist() == one.rewards[:-1].tolist()


@every_backend
@pytest.mark.parametrize("wait", ["lockstep", "ready-first", "auto"])
def test_with_boundaries_and_tasks_shown_the_set_is_that_of_a_plain_loop(options, wait):
    wanted = plain_rollouts(makes(Drift, 5), Chance, 9, tasks=a_goal, episodes=3, see=see_all)
    shown = {"tasks": a_goal, "episodes_per_task": 3, "boundaries": True, "oracle": True, "wait": wait}
    for num_envs in (2, 7):
        found = collect(makes(Drift, 5), Chance, 9, num_envs=num_envs, check_reuse=False, **shown, **options)
        assert found.digest() == wanted.digest()


class DiesOnce(Drift):
    """Kills its process in a step of a trial, unless the file is there that says it has done so before."""

    def __init__(self, length, died):
        super().__init__(length)
        self.died = Path(died)

    def move(self, action):
        if self.steps == 2 and not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().move(action)


def test_kills_change_nothing_of_what_is_shown(tmp_path):
    died = tmp_path / "died"
    shown = {"tasks": a_goal, "episodes_per_task": 2, "boundaries": True, "oracle": True, "check_reuse": False}
    wanted = collect(makes(Drift, 5), Chance, 8, num_envs=2, backend="serial", **shown)
    found = collect(makes(DiesOnce, 5, died), Chance, 8, num_envs=2, **shown, **OPTIONS["process-isolated"])
    assert died.exists()
    assert found.digest() == wanted.digest()


def test_the_flag_is_one_in_the_first_observation_of_every_later_episode():
    (rollout,) = collect(makes(TaskWorld, 2), "random", 1, episodes_per_task=3, boundaries=True, backend="serial")
    assert rollout.observations[:, -1].tolist() == [0, 0, 1, 0, 1, 0]
    assert rollout.last_observations[:, -1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("turns", ["simultaneous", "sequential"])
def test_every_agent_is_shown_the_task_and_sees_the_flag_when_it_first_acts(turns):
    shown = {"tasks": [7], "episodes_per_task": 2, "boundaries": True, "oracle": True, "turns": turns}
    world = makes(Timetable, "abc abc-abc")
    (rollout,) = collect(world, "random", 1, backend="serial", **shown)
    for one in rollout.agents.values():
        seen = one.observations[one.acted]
        assert seen[:, -2].tolist() == [7.0] * len(seen)
        assert seen[:, -1].tolist() == [float(step == len(seen) // 2) for step in range(len(seen))]


def test_other_observations_become_a_dict():
    shown = {"tasks": [(2, 3)], "episodes_per_task": 2, "boundaries": True, "oracle": True}
    one, many = (collect(Crowd, "random", 5, num_envs=n, backend="serial", **shown) for n in (1, 4))
    assert one.digest() == many.digest()
    for rollout in one:
        seen = rollout.agents["lion_0"].observations
        assert sorted(seen) == ["boundary", "observation", "task"]
        assert sorted(seen["observation"]) == ["action_mask", "observation"]
        assert set(map(tuple, seen["task"][rollout.agents["lion_0"].acted])) == {(2.0, 3.0)}
        first = rollout.episodes[1].start
        assert np.flatnonzero(seen["boundary"]).tolist() == [first]


BOX = spaces.Box(-2, 3, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "task", "bounds", "dtype"),
    [
        (BOX, 1.5, ([-2, -2, -np.inf, 0], [3, 3, np.inf, 1]), np.float32),
        (spaces.Box(0, 255, (1,), np.uint8), [1, 2], ([0, -np.inf, -np.inf, 0], [255, np.inf, np.inf, 1]), np.float32),
        (spaces.Box(-9, 9, (1,), np.int64), {"a": 1}, ([-9, -np.inf, 0], [9, np.inf, 1]), np.float64),
        (spaces.Box(-9, 9, (1,), np.float64), np.float32(1), ([-9, -np.inf, 0], [9, np.inf, 1]), np.float64),
    ],
)
def test_a_box_gets_longer_with_the_right_bounds_and_type(space, task, bounds, dtype):
    view = ObservationView(space, spaces.Discrete(2), TrialView(boundaries=True, form=TaskForm(task)))
    assert view.space.dtype == dtype
    assert (view.space.low.tolist(), view.space.high.tolist()) == bounds
    view.begin(task)
    seen = view.see(space.sample(), boundary=True)
    assert seen in view.space
    assert seen[-1] == 1


@pytest.mark.parametrize("task", [np.ones((2, 2)), {"a": [1, 2], "b": {"c": 3}}, (1, [2, 3]), [[1], [2, 3]]])
def test_a_task_with_parts_of_its_own_is_shown_in_them(task):
    view = ObservationView(BOX, spaces.Discrete(2), TrialView(form=TaskForm(task)))
    view.begin(task)
    seen = view.see(np.zeros(2, np.float32))
    assert seen in view.space
    assert list(seen) == ["observation", "task"]


@pytest.mark.parametrize("tasks", [[1, [2, 3]], [{"a": 1}, {"b": 1}], [(1, 2), (1, 2, 3)], [1, "two"]])
def test_a_task_of_another_form_than_the_first_is_refused_with_its_rollout(tasks):
    with pytest.raises(UsageError, match=r"have the form of the first, and rollout 1 has .*; give all"):
        collect(TaskWorld2, "random", 2, tasks=lambda index, _: tasks[index], oracle=True, backend="serial")


class TaskWorld2(World):
    """Takes any task."""

    def move(self, action):
        return self.see(), 0.0, self.steps == 2, False, {}


def test_an_oracle_needs_tasks_that_consist_of_numbers_and_worlds_of_its_own():
    with pytest.raises(UsageError, match="shows policies the task, and there are none; pass tasks"):
        collect(TaskWorld2, "random", 1, oracle=True)
    with pytest.raises(UsageError, match="must consist of numbers to be shown, got 'left'"):
        collect(TaskWorld2, "random", 1, tasks=["left"], oracle=True, check_reuse=False)
    with (
        stretto.make_vec(TaskWorld2, 1, backend="serial") as envs,
        pytest.raises(UsageError, match="used as it is, got boundaries, oracle beside it"),
    ):
        collect(envs, "random", 1, tasks=[1], oracle=True, boundaries=True)


# ---- how a world is given its task ----


class ByConstructor(World):
    """Is given its task when it is made, and counts how many of its kind were made."""

    made = 0

    def __init__(self, task, render_mode=None):
        super().__init__(render_mode)
        type(self).made += 1
        self.task = float(task)

    def see(self):
        return np.array([self.steps, self.task])

    def move(self, action):
        return self.see(), 0.0, self.steps == 2, False, {}


class ByReset(ByConstructor):
    """Takes its task, and nothing else, in `reset`, as VariBAD's wrapper does; without one it would draw its own."""

    def __init__(self, render_mode=None):
        super().__init__(-1, render_mode)

    def reset(self, task=None):
        self.task = -1.0 if task is None else float(task)
        self.steps = 0
        return np.array([self.np_random.integers(1000), self.task]), {}

    def reset_task(self, task):
        raise AssertionError("its reset draws another then")


def registered():
    gymnasium.register("TestsByReset-v0", ByReset, max_episode_steps=5)
    try:
        return gymnasium.spec("TestsByReset-v0")
    finally:
        gymnasium.registry.pop("TestsByReset-v0")


@pytest.mark.parametrize("world", [ByConstructor, ByReset, registered()], ids=["constructor", "reset", "registered"])
@pytest.mark.parametrize("options", [OPTIONS["serial"], OPTIONS["process"]], ids=["serial", "process"])
def test_a_world_is_given_its_task_by_its_constructor_or_its_reset(world, options):
    tasks = {"tasks": lambda index, _: 10 * index, "episodes_per_task": 2}
    found = collect(world, "random", 5, num_envs=2, **tasks, **options)
    assert [set(one.observations[:, 1]) for one in found] == [{10.0 * index} for index in range(5)]
    assert found.digest() == collect(world, "random", 5, num_envs=4, backend="serial", **tasks).digest()
    if world is not ByConstructor:
        assert len({one.observations[0, 0] for one in found}) > 1  # it was seeded, too


def test_a_world_is_kept_while_the_task_is_the_same():
    ByConstructor.made = 0
    tasks = {
        "tasks": lambda index, _: [np.array([1.0]), np.array([2.0])][index // 3][0],
        "check_reuse": False,
        "wait": "lockstep",
    }
    collect(ByConstructor, "random", 6, num_envs=1, episodes_per_task=2, backend="serial", **tasks)
    assert ByConstructor.made == 2
    collect(ByConstructor, "random", 6, num_envs=1, backend="serial", fresh_worlds=True, **tasks)
    assert ByConstructor.made == 2 + 6


class Picky(World):
    """Needs a task, and refuses some."""

    def reset(self, *, seed=None, options=None):
        if options["task"] > 2:
            raise ValueError(f"no such task: {options['task']}")
        return super().reset(seed=seed)

    def move(self, action):
        return self.see(), 0.0, True, False, {}


def test_slots_that_have_nothing_to_play_begin_with_a_task_as_well():
    assert len(collect(Picky, "random", 2, tasks=[1], num_envs=4, backend="serial")) == 2


@here_and_elsewhere
@pytest.mark.parametrize("wait", ["lockstep", "ready-first", "whole"])
def test_a_task_that_the_world_refuses_is_told_in_its_words_with_the_rollout(options, wait):
    with pytest.raises(ValueError, match="no such task: 3") as raised:
        collect(Picky, "random", 4, tasks=lambda index, _: index, num_envs=2, wait=wait, **options)
    assert "rollout 3, with the task 3" in "".join(raised.value.__notes__)


def needs_a_module():
    import a_module_that_nobody_has  # noqa: F401

    return Drift()


class NeedsAnAttribute(Drift):
    def move(self, action):
        return self.energy


@here_and_elsewhere
@pytest.mark.parametrize("wait", ["lockstep", "ready-first", "whole"])
def test_an_attribute_that_is_not_there_is_told_with_the_rollout(options, wait):
    with pytest.raises(AttributeError, match="'NeedsAnAttribute' object has no attribute 'energy'") as raised:
        collect(NeedsAnAttribute, "random", 2, num_envs=2, wait=wait, check_reuse=False, **options)
    assert "rollout " in "".join(raised.value.__notes__)


@here_and_elsewhere
def test_a_missing_module_is_named_wherever_it_is_missing(options):
    with pytest.raises(ModuleNotFoundError, match="No module named 'a_module_that_nobody_has'"):
        collect(needs_a_module, "random", 2, num_envs=2, **options)
