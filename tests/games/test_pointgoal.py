"""The rules of Pointgoal, and that its tasks arrive wherever episodes begin."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import stretto
from stretto.games.pointgoal import (
    MISSIONS,
    VARIANTS,
    Pointgoal,
    eval_tasks,
    sample_task,
    split_of,
    train_tasks,
)

every_split = pytest.mark.parametrize("split", ["train", "eval"])
some_backends = pytest.mark.parametrize("backend", ["serial", "process"])
every_mode = pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda m: m.value)


def episode(env, choose, seed=None, task=None):
    """Return the sum of the rewards."""
    position, _ = env.reset(seed=seed, options=None if task is None else {"task": task})
    total, over = 0.0, False
    while not over:
        position, reward, _, over, _ = env.step(choose(env, position))
        total += reward
    return total


def stays(env, position):
    return 0.0, 0.0


def knows_the_goal(env, position):
    goal = np.array((math.cos(env.task), math.sin(env.task)))
    return np.clip((goal - position) / env.step_length, -1, 1)


# ---- what it is ----


@every_split
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_gymnasium_finds_nothing_wrong_with_it(split, render_mode):
    spec = EnvSpec("Pointgoal-v0", entry_point=Pointgoal, kwargs={"split": split})
    check_env(gymnasium.make(spec, render_mode=render_mode).unwrapped)


def test_an_episode_is_a_function_of_the_seed_and_the_actions():
    def rows(seed):
        env = Pointgoal()
        env.reset(seed=seed)
        return [(*env.step(action)[:2],) for action in np.random.default_rng(2).uniform(-1, 1, (20, 2))]

    assert repr(rows(1)) == repr(rows(1))
    assert repr(rows(1)) != repr(rows(2))


def test_it_begins_at_the_centre_and_an_action_moves_it_and_longer_ones_are_clipped():
    env = Pointgoal(step_length=0.5)
    observation, info = env.reset(seed=0, options={"task": 0.0})
    assert (observation.tolist(), info) == ([0.0, 0.0], {})
    assert env.step(np.array([1.0, -0.5], np.float32))[0].tolist() == [0.5, -0.25]
    assert env.step([9.0, -9.0])[0].tolist() == [1.0, -0.75]
    for _ in range(5):
        observation, *_ = env.step([1.0, 1.0])
    assert observation.tolist() == [2.0, 1.75]


def test_the_reward_is_minus_the_distance_to_a_goal_on_the_circle():
    env = Pointgoal(step_length=1.0)
    env.reset(options={"task": math.pi / 2})
    assert env.step([0.0, 1.0])[1] == pytest.approx(0.0)
    assert env.step([1.0, 0.0])[1] == pytest.approx(-1.0)
    env.reset(options={"task": -math.pi})
    assert env.step([1.0, 0.0])[1] == pytest.approx(-2.0)


def test_a_sparse_reward_is_nothing_but_near_the_goal():
    env = Pointgoal(step_length=1.0, sparse=True)
    env.reset(options={"task": 0.0})
    assert [env.step([dx, 0.0])[1] for dx in (0.5, 0.39, 0.06, 0.05)] == pytest.approx([0.0, 0.0, 0.5, 1.0])


def test_the_goal_is_in_no_observation_and_no_info():
    env = Pointgoal()
    seen = []
    for task in (0.1, 3.0):
        seen.append([env.reset(options={"task": task})])
        for _ in range(20):
            observation, _, terminated, truncated, info = env.step([0.3, 0.4])
            seen[-1].append((observation.tolist(), terminated, truncated, info))
    assert repr(seen[0]) == repr(seen[1])


def test_an_episode_ends_at_the_horizon_and_not_by_itself():
    env = Pointgoal(horizon=3)
    env.reset(seed=0)
    assert [env.step([0, 0])[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    with pytest.raises(stretto.ResetNeeded, match="call reset"):
        env.step([0, 0])


def test_one_who_knows_the_goal_loses_half_of_what_one_loses_who_stays():
    env = Pointgoal()
    assert episode(env, stays, seed=0) == pytest.approx(-20)
    assert episode(env, knows_the_goal, seed=0) > -10
    found = env.statistics()
    assert found["reached"] == 1
    assert found["distance_last"] < 1e-6
    assert found["steps_to_goal"] <= 10


def test_statistics_are_numbers_at_any_time():
    env = Pointgoal()
    for _ in range(2):
        assert all(type(value) is float for value in env.statistics().values())
        episode(env, stays, task=-math.pi / 2)
    assert env.statistics() == pytest.approx(
        {"distance_mean": 1.0, "distance_last": 1.0, "reached": 0.0, "steps_to_goal": 20.0, "goal_degrees": 270.0}
    )


@pytest.mark.parametrize("kwargs", [mission["kwargs"] for mission in MISSIONS.values()] + list(VARIANTS.values()))
def test_in_every_mission_and_variant_one_who_knows_the_goal_reaches_it(kwargs):
    env = Pointgoal(**kwargs)
    episode(env, knows_the_goal, seed=0)
    assert env.statistics()["reached"] == 1
    assert split_of(env.task) == kwargs.get("split", "train")


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"split": "test"}, "split must be one of 'train', 'eval', got 'test'"),
        ({"horizon": 0}, "horizon must be a whole number of at least 1, got 0"),
        ({"step_length": -1.0}, "step_length must be above 0 and at most 2.0, got -1.0"),
        ({"render_mode": "human"}, "render_mode must be None or 'rgb_array', got 'human'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(wrong, rule):
    with pytest.raises(stretto.UsageError, match=rule):
        Pointgoal(**wrong)


@pytest.mark.parametrize("action", [[math.nan, 0.0], [1.0], [1.0, 2.0, 3.0], None])
def test_an_action_that_is_no_move_is_refused(action):
    env = Pointgoal()
    env.reset(seed=0)
    with pytest.raises(stretto.InvalidAction, match="two finite numbers"):
        env.step(action)


@pytest.mark.parametrize("task", [math.inf, "north", (1, 2)])
def test_a_task_that_is_no_angle_is_refused(task):
    with pytest.raises(stretto.UsageError, match="a finite angle in radians"):
        Pointgoal().reset(options={"task": task})


# ---- tasks ----


@every_split
def test_without_a_task_one_of_the_split_is_drawn_at_every_reset(split):
    env = Pointgoal(split=split)
    env.reset(seed=0)
    tasks = []
    for _ in range(200):
        env.reset()
        tasks.append(env.task)
    assert len(set(tasks)) == 200
    assert {split_of(task) for task in tasks} == {split}


def test_tasks_are_a_function_of_the_seed_and_more_of_them_begin_with_the_same():
    for tasks in (train_tasks, eval_tasks):
        assert tasks(10, seed=1) == tasks(10, seed=1) == tasks(30, seed=1)[:10]
        assert not set(tasks(10, seed=1)) & set(tasks(10, seed=2))
    with pytest.raises(stretto.UsageError, match="count must be at least 1, got 0"):
        train_tasks(0, seed=1)


def test_tasks_to_learn_from_and_tasks_held_back_have_no_direction_in_common():
    train, held_back = (np.degrees(tasks(2000, seed=0)) for tasks in (train_tasks, eval_tasks))
    assert (train % 90 <= 60).all()
    assert (held_back % 90 > 61).all()
    for angles in (train, held_back):
        assert set(angles // 90) == {0, 1, 2, 3}
    assert np.abs(train[:, None] - held_back).min() > 1


@every_split
@every_mode
@some_backends
def test_tasks_arrive_at_resets_that_are_asked_for_and_at_those_that_are_not(split, mode, backend):
    given = {}

    def source(slot, episode, stream):
        given[slot, episode] = sample_task(split)(slot, episode, stream)
        return given[slot, episode]

    options = {"env_kwargs": {"horizon": 5}, "autoreset_mode": mode, "backend": backend}
    with stretto.make_vec(Pointgoal, 4, tasks=source, **options) as envs:
        envs.reset(seed=3)
        seen = [envs.get_attr("task")]
        for _ in range(17):
            envs.step(np.zeros((4, 2), np.float32))
            if seen[-1] != (now := envs.get_attr("task")):
                seen.append(now)
    assert len(seen) >= 3
    for number, tasks in enumerate(seen):
        assert list(tasks) == [given[slot, number] for slot in range(4)]
    assert {split_of(task) for task in given.values()} == {split}
    assert len(set(given.values())) == len(given)


def test_a_list_of_tasks_is_drawn_from():
    tasks = eval_tasks(3, seed=0)
    with stretto.make_vec(Pointgoal, 4, tasks=tasks, backend="serial") as envs:
        seen = set()
        for seed in range(10):
            envs.reset(seed=seed)
            seen |= set(envs.get_attr("task"))
    assert seen == set(tasks)


# ---- looking on ----


def test_the_picture_shows_the_goal_and_the_way():
    env = Pointgoal(render_mode="rgb_array")
    pictures = []
    for task in (0.0, 2.0):
        env.reset(options={"task": task})
        pictures.append(env.render())
        env.step([1.0, 1.0])
        pictures.append(env.render())
    assert all(picture.shape == (256, 256, 3) and picture.dtype == np.uint8 for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == 4
    env = Pointgoal()
    env.reset(seed=0)
    assert env.render() is None
