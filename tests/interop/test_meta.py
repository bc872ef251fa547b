"""Environments whose episodes are trials, behind the names that code for meta-learning knows."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.errors import StrettoWarning, UsageError
from stretto.interop.meta import make_parallel_env
from tests.backends import OPTIONS, here_and_elsewhere
from tests.interop.trials import Sums, like_varibad, wide_actions
from tests.worlds import Crowd

SERIAL = {"make_options": OPTIONS["serial"]}


def play(envs, tasks, action=1):
    """Play trials to their ends; return all that they gave, by environment."""
    given = [[observation] for observation in envs.reset_all(tasks)]
    over = [False] * len(envs)
    while not all(over):
        rows = envs.step_all([None if done else action for done in over])
        for i, row in enumerate(zip(*rows, strict=True)):
            if not over[i]:
                given[i].append(row)
                over[i] = bool(row[2])
    return given


@here_and_elsewhere
def test_every_environment_plays_trials_of_its_own_task_and_the_width_changes_nothing(options):
    with make_parallel_env(Sums, 2, 3, seed=5, make_options=options) as envs:
        found = play(envs, [10, 20, 30])
        again = play(envs, [10, 20, 30])
        envs.seed(5)
        assert repr(play(envs, [10, 20, 30])) == repr(found) != repr(again)
    with make_parallel_env(Sums, 2, 3, seed=5, **SERIAL) as envs:
        assert repr(play(envs, [10, 20, 30])) == repr(found)
    for (first, *steps), task in zip(found, (10, 20, 30), strict=True):
        assert first.tolist() == [0, 0, 0]
        ends = [step for step in steps if step[3]["done_mdp"]]
        assert len(ends) == 2
        assert ends[0][0].tolist() == [0, 0, 1]  # the next episode has begun, and the flag says so
        assert ends[0][3]["start_state"].tolist() == [0, 0, 1]
        assert ends[0][3]["final_obs"][0] == ends[0][3]["sum"]
        assert [bool(step[2]) for step in steps] == [False] * (len(steps) - 1) + [True]
        assert all(step[1] == -(task - step[3]["sum"]) for step in steps)


def test_one_environment_can_be_reset_and_stepped_by_itself():
    with make_parallel_env(Sums, 1, 2, seed=0, **SERIAL) as envs:
        assert envs.reset(1, task=3).tolist() == [0, 0]  # one episode has no boundaries
        observation, reward, done, info = envs.step(1, 2)
        assert (observation.tolist(), reward, info["sum"]) == ([1, 2], -1.0, 2)
        with pytest.raises(UsageError, match=r"environment 0 plays no trial, or one that is over; call reset\(0, task"):
            envs.step(0, 1)
        while not done:
            _, _, done, _ = envs.step(1, 0)
        with pytest.raises(UsageError, match="environment 1 plays no trial"):
            envs.step(1, 1)
        with pytest.raises(UsageError, match="env_idx must be from 0 to 1, got 2"):
            envs.reset(2)


@here_and_elsewhere
def test_remotes_work_with_one_warning_that_says_what_to_use_instead(options):
    def talk(envs):
        for i, remote in enumerate(envs.remotes):
            remote.send(("reset", {"task": i}))
        found = [remote.recv().tolist() for remote in envs.remotes]
        for remote in envs.remotes:
            remote.send(("step", 2))
        return found + [remote.recv()[1] for remote in reversed(envs.remotes)]

    with make_parallel_env(Sums, 2, 3, seed=0, make_options=options) as envs:
        with pytest.warns(StrettoWarning, match="use reset_all and step_all, or stretto.collect") as said:
            found = talk(envs)
        assert len(said) == 1
        assert found == [[0, 0, 0]] * 3 + [0.0, -1.0, -2.0]
        with pytest.raises(UsageError, match="a command must be 'reset' or 'step', got 'seed'"):
            envs.remotes[0].send(("seed", 1))
        with pytest.raises(UsageError, match=r"environment 0 was sent nothing; call send\(\) first"):
            envs.remotes[0].recv()


def test_an_oracle_shows_what_the_world_tells_of_its_task():
    with make_parallel_env(Sums, 2, 1, seed=0, oracle=True) as envs:
        assert envs.observation_space.shape == (4,)
        assert envs.reset(task=7).tolist() == [0, 0, 7, 0]
        assert envs.step(0, 1)[0].tolist() == [1, 1, 7, 0]
    with make_parallel_env("pointgoal", 1, 1, seed=0, oracle=True) as envs:
        assert envs.reset(task=0.5).tolist() == [0, 0, 0.5]
    with pytest.raises(UsageError, match=r"needs a world that tells its task, and Box2 does not.*get_current_task\(\)"):
        make_parallel_env(Box2, 1, 1, oracle=True)


class Box2(Sums):
    get_current_task = None  # type: ignore[assignment]


def test_a_world_in_a_wrapper_of_its_own_is_not_wrapped_twice():
    with make_parallel_env(like_varibad, 2, 2, seed=0, **SERIAL) as envs:
        assert envs.observation_space == like_varibad().observation_space
        for (_, *steps), task in zip(play(envs, [10, 20]), (10, 20), strict=True):
            assert [step[0][2] for step in steps].count(1.0) == 1
            assert [step[3]["done_mdp"] for step in steps].count(True) == 1
            assert all(step[1] == step[3]["sum"] - task for step in steps)
        assert envs.get_attr("episodes_per_task") == [2, 2]
    with pytest.raises(
        UsageError, match=r"plays 2 episodes a task .*, got episodes_per_task=3 and oracle=False; set both"
    ):
        make_parallel_env(like_varibad, 3, 1)


def test_actions_of_a_bounded_box_are_from_minus_one_to_one_and_clipped():
    with make_parallel_env(wide_actions, 1, 1, seed=0) as envs:
        assert (envs.action_space.low.min(), envs.action_space.high.max()) == (-1, 1)
        envs.reset(task=0.0)
        assert np.allclose(envs.step(0, [5.0, -1.0])[0], [0.1, -0.05])


def test_arguments_of_a_learner_reach_only_worlds_that_have_them():
    with make_parallel_env(Sums, 1, 1, limit=9, num_train_tasks=50, num_eval_tasks=20) as envs:
        assert envs.get_attr("limit") == [9]
        assert envs.get_attr("num_train_tasks") == [50]
    with pytest.raises(UsageError, match="got speed for"):
        make_parallel_env(Sums, 1, 1, speed=9)


def test_what_cannot_be_is_said_in_a_sentence():
    with pytest.raises(UsageError, match="whole numbers of at least 1, got 0 and 2; pass num_workers='auto'"):
        make_parallel_env(Sums, 2, 0)
    with pytest.raises(UsageError, match=r"for worlds with one agent, got several; use stretto.collect"):
        make_parallel_env(Crowd, 1, 1)
    with make_parallel_env(Sums, 1, 2, **SERIAL) as envs:
        with pytest.raises(AttributeError, match="no attribute 'gaol'; did you mean goal"):
            envs.get_attr("gaol")
        with pytest.raises(UsageError, match="a task for each of 2 environments, got 1"):
            envs.reset_all([1])
        with pytest.raises(ValueError, match="no such task: 100"):
            envs.reset_all([100, 1])
        envs.reset_all([1, 1])
        with pytest.raises(UsageError, match="environment 0 plays a trial and needs an action, got None"):
            envs.step_all([None, 1])


def test_auto_is_one_environment_a_core():
    with make_parallel_env(Sums, 1, "auto", **SERIAL) as envs:
        assert len(envs) >= 1
