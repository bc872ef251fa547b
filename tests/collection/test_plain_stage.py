"""A trial that is played by itself is recorded, and refused, as it is in a vector environment."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from stretto import collect
from stretto.errors import InvalidOutput
from tests.worlds import World

WAYS = [{"wait": "whole"}, {"wait": "lockstep", "num_envs": 2}]
in_both_ways = pytest.mark.parametrize("way", WAYS, ids=[way["wait"] for way in WAYS])


class LateMistake(World):
    """Is as it should be for as long as worlds are looked at closely, and for some steps more."""

    GOOD_STEPS = 300

    def __init__(self, observation, reward):
        super().__init__()
        self.mistake = np.asarray(observation), reward

    def move(self, action):
        if self.steps > self.GOOD_STEPS:
            return *self.mistake, True, False, {}
        return self.see(), 1.0, False, False, {}


@in_both_ways
@pytest.mark.parametrize(("observation", "reward"), [(7.0, 1.0), ([7.0], 1.0), ([7.0, 7.0], None), ([7.0, 7.0], "1.5")])
def test_what_a_world_returns_is_looked_at_in_every_step(way, observation, reward):
    with pytest.raises(InvalidOutput, match="step 301"):
        collect(lambda: LateMistake(observation, reward), lambda _: 0, 1, backend="serial", check_reuse=False, **way)


class LateArray(World):
    """Says with an array, but only after many steps, that its episode is over."""

    def move(self, action):
        over = np.array([False, True]) if self.steps > LateMistake.GOOD_STEPS else False
        return self.see(), 1.0, over, False, {}


@in_both_ways
def test_an_end_that_is_an_array_is_named_at_any_step(way):
    with pytest.raises(InvalidOutput, match=r"terminated must be True or False, got .*step 301"):
        collect(LateArray, lambda _: 0, 1, backend="serial", check_reuse=False, **way)


class Greedy(World):
    """Writes into the actions that it is given, and into its own observation."""

    def __init__(self, space):
        super().__init__()
        self.action_space, self.seen = space, np.zeros(2)

    def reset(self, *, seed=None, options=None):
        self.seen[:] = 0
        return super().reset(seed=seed, options=options)

    def see(self):
        return self.seen

    def move(self, action):
        values = action["to"] if isinstance(action, dict) else action
        self.seen += values
        values[:] = -1
        return self.seen, np.float32(values.sum()), self.steps == 4, False, {}


class Reuses:
    """Writes every action into the same array, and into what it sees."""

    def __init__(self, in_dict=False):
        self.action, self.in_dict = np.zeros(2, np.float32), in_dict

    def step(self, observation):
        self.action += 1 + observation[0]
        observation[:] = 1e6
        return {"to": self.action} if self.in_dict else self.action


class ReusesDict(Reuses):
    def __init__(self):
        super().__init__(in_dict=True)


BOX = spaces.Box(-1e6, 1e6, (2,), np.float32)


@pytest.mark.parametrize(("space", "policy"), [(BOX, Reuses), (spaces.Dict(to=BOX), ReusesDict)], ids=["Box", "Dict"])
def test_what_is_recorded_is_what_was_seen_and_chosen_whoever_writes_into_it_later(space, policy):
    found = [collect(lambda: Greedy(space), policy, 3, backend="serial", check_reuse=False, **way) for way in WAYS]
    actions = found[0][0].actions
    assert len({float(row[0]) for row in (actions["to"] if isinstance(actions, dict) else actions)}) == 4
    assert found[0].digest() == found[1].digest()


@pytest.mark.parametrize("kind", [int, np.int64, np.int32, float, np.array])
def test_a_choice_reaches_the_world_as_its_space_has_it_whatever_kind_of_number_it_is(kind):
    class Tells(World):
        def move(self, action):
            assert type(action) is np.int64
            return self.see(), float(action), True, False, {}

    found = [collect(Tells, lambda _: kind(3), 2, backend="serial", **way) for way in WAYS]
    assert found[0].returns.tolist() == [3.0, 3.0]
    assert found[0].digest() == found[1].digest()
