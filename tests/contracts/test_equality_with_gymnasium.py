"""Step by step, ours give what Gymnasium's own vector environment gives: over worlds that nobody here wrote."""

from __future__ import annotations

import contextlib

import gymnasium
import minigrid  # noqa: F401  registers its worlds
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers import vector as vector_wrappers

import stretto
from stretto.testing import Run, check_equals_gymnasium, play, sample_actions
from tests.backends import every_backend

every_mode = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)

# Most episodes are far longer than a test: a limit lets some end.
WORLDS = {
    "CartPole-v1": {},
    "Acrobot-v1": {"max_episode_steps": 17},
    "Pendulum-v1": {"max_episode_steps": 23},
    "MountainCarContinuous-v0": {"max_episode_steps": 19},
    "Blackjack-v1": {},
    "FrozenLake-v1": {},
    "Taxi-v4": {"max_episode_steps": 11},
    "CliffWalking-v1": {"max_episode_steps": 13},
    "LunarLander-v3": {"max_episode_steps": 40},
    "BipedalWalker-v3": {"max_episode_steps": 29},
    "MiniGrid-Empty-5x5-v0": {"max_episode_steps": 20},
    "MiniGrid-DoorKey-5x5-v0": {"max_episode_steps": 15},
    "HalfCheetah-v5": {"max_episode_steps": 21},
    "Hopper-v5": {},
}


@every_mode
@pytest.mark.parametrize("name", WORLDS)
def test_every_step_is_the_same(name, mode):
    run = check_equals_gymnasium(
        name, 5, steps=70, env_kwargs=WORLDS[name], autoreset_mode=mode, backend="process", workers=3
    )
    assert run.episodes > 0


@every_backend
@every_mode
@pytest.mark.parametrize("name", ["CartPole-v1", "MiniGrid-Empty-5x5-v0", "Hopper-v5"])
def test_every_step_is_the_same_on_every_backend(name, mode, options):
    check_equals_gymnasium(name, 4, steps=40, env_kwargs=WORLDS[name], autoreset_mode=mode, **options)


@every_backend
@every_mode
def test_nested_infos_of_a_wrapper_around_each_world_are_the_same(mode, options):
    wrappers = (lambda env: TimeLimit(env, 9), KeepsStatistics)
    run = check_equals_gymnasium("CartPole-v1", 5, steps=40, wrappers=wrappers, autoreset_mode=mode, **options)
    assert run.episodes > 0


class KeepsStatistics(RecordEpisodeStatistics):
    """Leaves the time out, which is never the same twice."""

    def step(self, action):
        *rest, info = super().step(action)
        if "episode" in info:
            info["episode"] = {key: info["episode"][key] for key in ("r", "l")}
        return *rest, info


class Bounded(gymnasium.Env):
    """A walk whose observations have bounds of their own."""

    action_space = spaces.Discrete(3)

    def __init__(self, high):
        self.observation_space = spaces.Dict(
            {"at": spaces.Box(-high, high, (2,)), "last": spaces.Discrete(3 + int(high))}
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.random(2, np.float32)
        return {"at": self.at.copy(), "last": 0}, {}

    def step(self, action):
        self.at = self.at + np.float32(action) - 1
        return {"at": self.at.copy(), "last": action}, 1.0, self.np_random.random() < 0.1, False, {}


@every_backend
@pytest.mark.parametrize("custom", [False, True])
def test_spaces_that_differ_in_their_bounds_are_put_together_in_the_same_way(custom, options):
    makers = [lambda high=high: Bounded(high) for high in (5.0, 7.0, 7.0, 9.0)]
    mode = "different"
    if custom:
        single = Bounded(99.0).observation_space
        mode = (batch_space(single, 4), single)
    theirs = SyncVectorEnv(makers, observation_mode=mode)
    with contextlib.closing(theirs), stretto.make_vec(makers, observation_mode=mode, **options) as ours:
        assert ours.observation_space == theirs.observation_space
        assert ours.single_observation_space == theirs.single_observation_space
        actions = sample_actions(theirs, 60)
        play(ours, actions, 1).check_same(play(theirs, actions, 1), "ours and Gymnasium's, of different spaces")


VECTOR_WRAPPERS = {
    "RecordEpisodeStatistics": vector_wrappers.RecordEpisodeStatistics,
    "NormalizeObservation": vector_wrappers.NormalizeObservation,
    "NormalizeReward": vector_wrappers.NormalizeReward,
    "ClipReward": lambda envs: vector_wrappers.ClipReward(envs, -0.5, 0.5),
    "RescaleAction": lambda envs: vector_wrappers.RescaleAction(envs, -0.5, 0.5),
    "DictInfoToList": vector_wrappers.DictInfoToList,
    "DtypeObservation": lambda envs: vector_wrappers.DtypeObservation(envs, np.float16),
    "FlattenObservation": vector_wrappers.FlattenObservation,
}


@every_mode
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")  # Gymnasium's, of what it is asked to do here
@pytest.mark.parametrize("wrap", VECTOR_WRAPPERS.values(), ids=VECTOR_WRAPPERS)
def test_gymnasiums_vector_wrappers_work_the_same_around_ours(wrap, mode):
    limit = {"max_episode_steps": 13}
    theirs = SyncVectorEnv([lambda: gymnasium.make("Hopper-v5", **limit)] * 4, autoreset_mode=mode)
    ours = stretto.make_vec("Hopper-v5", 4, env_kwargs=limit, autoreset_mode=mode, backend="process", workers=2)
    with contextlib.closing(theirs), ours:
        expected, got = (play_wrapped(wrap, envs) for envs in (theirs, ours))
        if isinstance(expected, Run):
            got.check_same(expected, "ours and Gymnasium's, wrapped")
        else:
            assert got == expected


def play_wrapped(wrap, envs):
    """Return the run, or, for a mode that the wrapper refuses, its words."""
    try:
        wrapped = wrap(envs)
    except (ValueError, AssertionError) as refused:
        return str(refused).replace(str(envs), "envs")
    return without_times(play(wrapped, sample_actions(wrapped, 40), 3))


def without_times(run):
    for moment in run.moments:
        for part in moment:
            for infos in part if isinstance(part, list) else [part]:
                if isinstance(infos, dict) and "episode" in infos:
                    infos["episode"] = {k: v for k, v in infos["episode"].items() if k in ("r", "l", "_r", "_l")}
    return run


@every_backend
def test_a_wrapper_reads_the_spaces_the_spec_and_the_mode(options):
    with stretto.make_vec("CartPole-v1", 3, **options) as envs:
        wrapped = vector_wrappers.RecordEpisodeStatistics(envs)
        assert wrapped.num_envs == 3
        assert wrapped.spec.id == "CartPole-v1"
        assert wrapped.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert wrapped.single_observation_space == gymnasium.make("CartPole-v1").observation_space
        assert wrapped.action_space.shape == (3,)
        assert wrapped.unwrapped is envs
