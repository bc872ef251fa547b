"""Worlds with the API of old gym are read as they are meant, on every backend, and say so once."""

from __future__ import annotations

import random
import warnings
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto import errors
from stretto.adapters.blocks import as_env
from stretto.adapters.old_gym import space_of
from stretto.errors import InvalidSpace, ReadAsOldGym
from stretto.testing import check_same, play
from tests.backends import every_backend

quietly = pytest.mark.filterwarnings("ignore::stretto.errors.ReadAsOldGym")


class Old:
    """Draws from its own old generator; ends after `limit` steps, by the clock if `truncates`."""

    metadata = {"render.modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, limit=4, truncates=False):
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)
        self.limit, self.truncates = limit, truncates
        self.seed(0)

    def seed(self, seed=None):
        self.rng = np.random.RandomState(seed)
        return [seed]

    def see(self):
        return self.rng.uniform(-1, 1, 2).astype(np.float32)

    def reset(self):
        self.steps = 0
        return self.see()

    def step(self, action):
        self.steps += 1
        done = self.steps == self.limit
        return self.see(), float(action), done, {"TimeLimit.truncated": True} if done and self.truncates else {}

    def render(self, mode="human"):
        return f"{mode}: {self.steps}"


class BySetSeed(Old):
    """Is seeded by another name, and draws from the global generator as well."""

    seed = None

    def __init__(self):
        self.rng = np.random.RandomState(0)
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)
        self.limit, self.truncates = 3, False

    def set_seed(self, seed):
        self.rng = np.random.RandomState(seed)

    def see(self):
        return super().see() * np.float32(random.random())


class HalfWay(gymnasium.Env):
    """Derives from Gymnasium's class, and still has the old methods."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)

    def reset(self):
        return np.zeros(2, np.float32)

    def step(self, action):
        return np.ones(2, np.float32), 1.0, True, {}


class Latest(Old):
    """As gym 0.26 had it: `reset` takes a seed and returns an info, and `step` returns five values."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            super().seed(seed)
        return super().reset(), {"begun": True}

    def step(self, action):
        observation, reward, done, _ = super().step(action)
        return observation, reward, False, done, {}


def plain_loop(make, seed, actions):
    """What the old API gives, with a reset in the step after an episode's end."""
    env = make()
    env.seed(seed)
    seen, rewards, ends = [env.reset()], [], []
    done = False
    for action in actions:
        if done:
            observation, reward, done = env.reset(), 0.0, False
        else:
            observation, reward, done, _ = env.step(action)
        seen.append(observation)
        rewards.append(reward)
        ends.append(done)
    return seen, rewards, ends


@quietly
@every_backend
def test_every_step_is_that_of_the_old_loop(options):
    actions = [t % 3 for t in range(12)]
    with stretto.make_vec(Old, 3, **options) as envs:
        run_seen, rewards, ends = [envs.reset(seed=5)[0]], [], []
        for action in actions:
            observations, reward, terminated, truncated, _ = envs.step([action] * 3)
            assert not truncated.any()
            run_seen.append(observations)
            rewards.append(reward)
            ends.append(terminated)
    for slot in range(3):
        seen, expected, over = plain_loop(Old, 5 + slot, actions)
        check_same([one[slot] for one in run_seen], seen, f"slot {slot}")
        assert [one[slot] for one in rewards] == expected
        assert [one[slot] for one in ends] == over


@quietly
@pytest.mark.parametrize("make", [BySetSeed, Latest, HalfWay])
def test_all_ways_to_be_old_give_the_same_on_every_backend(make):
    actions = [np.array([t % 3, 1]) for t in range(15)]
    runs = []
    for options in ({"backend": "serial"}, {"backend": "process", "workers": 2, "isolate": True}):
        with stretto.make_vec(make, 2, **options) as envs:
            runs.append(play(envs, actions, 7))
            check_same(play(envs, actions, 7), runs[0], "the same seed again")
    check_same(runs[0], runs[1], "15 steps")


@quietly
def test_a_done_by_the_clock_is_a_truncation():
    with stretto.make_vec(partial(Old, limit=2, truncates=True), 2, backend="serial") as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        _, _, terminated, truncated, infos = envs.step([0, 0])
    assert truncated.all()
    assert not terminated.any()
    assert infos["TimeLimit.truncated"].all()


@quietly
def test_its_own_attributes_and_methods_are_reached_and_wrappers_of_gymnasium_fit():
    cut = partial(gymnasium.wrappers.TimeLimit, max_episode_steps=2)
    with stretto.make_vec(Old, 2, backend="serial", wrappers=[cut]) as envs:
        envs.reset(seed=0)
        assert envs.get_attr("limit") == (4, 4)
        envs.set_attr("limit", 9)
        assert envs.map(lambda env: env.unwrapped.limit) == (9, 9)
        assert envs.call("seed", 3) == ([3], [3])
        envs.step([0, 0])
        assert envs.step([0, 0])[3].all()


@quietly
def test_policies_are_evaluated_on_it_and_it_can_be_limited_in_steps(tmp_path):
    report = stretto.evaluate(partial(Old, limit=9), "random", episodes=3, steps=5, jobs=0)
    assert [record.steps for record in report.records] == [5, 5, 5]
    again = stretto.evaluate(partial(Old, limit=9), "random", episodes=3, steps=5, jobs=2)
    assert [r.rewards for r in again.records] == [r.rewards for r in report.records]


@quietly
def test_it_is_drawn_in_the_mode_that_it_knows():
    env = as_env(Old())
    env.reset(seed=0)
    assert env.render() == "ansi: 0"


def test_one_warning_says_how_it_is_read(monkeypatch):
    monkeypatch.setattr(errors, "_said", set())
    for options in ({"backend": "process", "workers": 2, "isolate": True}, {"backend": "serial"}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            stretto.make_vec(Old, 4, **options).close()
        told = [str(one.message) for one in caught if issubclass(one.category, ReadAsOldGym)]
        if options["backend"] == "process":
            assert len(told) == 1
            assert "Old is read as a world of old gym: seed() is given its seed, and done ends an episode" in told[0]
        else:
            assert not told  # it was said
    for make, how in [(BySetSeed, "set_seed() is given"), (Latest, "reset takes its"), (HalfWay, "it takes no seed")]:
        with pytest.warns(ReadAsOldGym, match=how.replace("(", r"\(").replace(")", r"\)")):
            as_env(make())


class Box:
    """A space that is known by its name alone."""

    low, high, dtype = np.zeros(2), np.ones(2), np.dtype(np.float32)


def test_spaces_of_old_gym_become_those_of_gymnasium():
    discrete = type("Discrete", (), {"n": 3})()
    nested = type("Dict", (), {"spaces": {"a": Box(), "b": type("Tuple", (), {"spaces": (discrete,)})()}})()
    assert space_of(nested) == spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Tuple([spaces.Discrete(3)]))
    assert space_of(type("MultiDiscrete", (), {"nvec": np.array([2, 3])})()) == spaces.MultiDiscrete([2, 3])
    assert space_of(type("MultiBinary", (), {"n": 4})()) == spaces.MultiBinary(4)
    assert space_of(type("Mine", (Box,), {})()) == spaces.Box(0, 1, (2,))
    with pytest.raises(InvalidSpace, match="must have spaces that Gymnasium has too"):
        space_of(SimpleNamespace())
