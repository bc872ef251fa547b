"""Policies that fit every world: what they draw and do is in the space, and depends on their generator alone."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from stretto.core import WorldSpec
from stretto.errors import UsageError
from stretto.policies.builtin import Noop, Random

INF = np.inf
MIXED_BOUNDS = spaces.Box(np.float32([-INF, 0, -INF, -2]), np.float32([INF, INF, 3, 2]))
NESTED = spaces.Dict(
    move=spaces.Discrete(3, start=5), arm=spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.MultiBinary(2)])
)


class EvenNumbers(spaces.Discrete):
    """A space that holds less than the one it derives from."""

    def sample(self, mask=None, probability=None):
        return super().sample() // 2 * 2

    def contains(self, x):
        return super().contains(x) and x % 2 == 0


COMMON_SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.Discrete(3, dtype=np.int8),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [1, 1]]),
    spaces.MultiBinary((2, 3)),
    spaces.Box(-1, 1, (2, 2)),
    spaces.Box(-1, 1, ()),
    spaces.Box(1, 2, (2,)),
    spaces.Box(-1e308, 1e308, (2,), np.float64),
    spaces.Box(-INF, INF, (2,)),
    MIXED_BOUNDS,
    spaces.Box(0, 255, (3,), np.uint8),
    spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    spaces.Box(0, np.iinfo(np.uint64).max, (2,), np.uint64),
    spaces.Box(-INF, -120, (9,), np.int8),
    spaces.Box(0, 1, (2,), np.bool_),
    NESTED,
]
OTHER_SPACES = [spaces.Text(5), spaces.Sequence(spaces.Discrete(3)), EvenNumbers(9)]


def world_of(space, action_names=()):
    return WorldSpec(("agent",), {"agent": spaces.Discrete(1)}, {"agent": space}, action_names)


def drawn(space, count=50, seed=0):
    agent = Random(world_of(space)).agent_policy("agent")
    agent.reset(np.random.default_rng(seed))
    return [agent.step(0) for _ in range(count)]


def idle(space, action_names=()):
    return Noop(world_of(space, action_names)).agent_policy("agent").step(0)


@pytest.mark.parametrize("space", [*COMMON_SPACES, *OTHER_SPACES], ids=str)
def test_whatever_random_draws_is_in_the_space(space):
    assert all(space.contains(action) for action in drawn(space))


@pytest.mark.parametrize("space", [*COMMON_SPACES, *OTHER_SPACES], ids=str)
def test_the_generator_alone_decides_what_is_drawn(space):
    space.seed(1)
    first = drawn(space)
    space.seed(2)
    assert repr(drawn(space)) == repr(first)
    assert repr(drawn(space, seed=1)) != repr(first)


@pytest.mark.parametrize("space", [spaces.Text(5), NESTED], ids=str)
def test_drawing_leaves_the_generator_of_the_world_s_own_space_alone(space):
    space.seed(7)
    expected = space.sample()
    space.seed(7)
    drawn(space)
    assert repr(space.sample()) == repr(expected)


def test_every_action_of_a_discrete_space_is_as_likely():
    counts = np.bincount([action + 1 for action in drawn(spaces.Discrete(3, start=-1), 3000)])
    assert len(counts) == 3
    assert (abs(counts - 1000) < 150).all()


def test_a_bounded_box_is_filled_evenly_up_to_both_bounds():
    values = np.array(drawn(spaces.Box(-2, 6, (2,)), 2000))
    assert values.min() < -1.9
    assert values.max() > 5.9
    assert abs(values.mean() - 2) < 0.2


def test_integers_reach_both_bounds():
    values = np.array(drawn(spaces.Box(-1, 1, (1,), np.int8), 100))
    assert set(values.ravel().tolist()) == {-1, 0, 1}


def test_a_side_without_a_bound_is_open():
    values = np.array(drawn(MIXED_BOUNDS, 500))
    assert values[:, 0].min() < -1 < 1 < values[:, 0].max()
    assert values[:, 1].max() > 3
    assert values[:, 2].min() < 0


@pytest.mark.parametrize("space", COMMON_SPACES, ids=str)
def test_doing_nothing_is_in_the_space(space):
    assert space.contains(idle(space))


def test_doing_nothing_is_the_first_action_or_zero_or_what_is_nearest_to_it():
    assert idle(spaces.Discrete(3, start=5)) == 5
    assert idle(spaces.Box(-1, 1, (2,))).tolist() == [0, 0]
    assert idle(spaces.Box(1, 2, (2,))).tolist() == [1, 1]
    assert idle(spaces.MultiDiscrete([3, 3], start=[2, 0])).tolist() == [2, 0]
    assert idle(NESTED)["move"] == 5


@pytest.mark.parametrize(
    ("names", "index"),
    [
        (("north", "noop", "wait"), 1),
        (("north", "wait", "noop"), 2),
        (("north", "south", "WAIT"), 2),
        (("north", "south", "east"), 0),
        (("north", "south", "east", "noop"), 0),  # beyond the actions that this agent has
    ],
)
def test_an_action_that_is_called_noop_or_wait_is_taken(names, index):
    assert idle(spaces.Discrete(3, start=10), names) == 10 + index


def test_a_world_that_changes_the_action_in_place_does_not_change_the_next_one():
    agent = Noop(world_of(spaces.Box(-1, 1, (2,)))).agent_policy("agent")
    agent.step(0)[:] = 1
    assert agent.step(0).tolist() == [0, 0]


def test_a_space_without_zeros_is_refused_with_the_spaces_that_do():
    with pytest.raises(UsageError, match=r"Discrete, MultiDiscrete, .* got Text"):
        idle(spaces.Text(5))


MASKED = {
    "Discrete": (spaces.Discrete(4, start=2), [0, 1, 0, 1], {3, 5}),
    "nothing allowed": (spaces.Discrete(3), [0, 0, 0], {0, 1, 2}),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3]), [0, 1, 1, 0, 1], {(1, 0), (1, 2)}),
    "another mask": (spaces.Discrete(3), [1, 0], {0, 1, 2}),
}


def masked(kind, space, mask):
    shown = spaces.Dict(action_mask=spaces.MultiBinary(len(mask)), place=spaces.Discrete(2))
    agent = kind(WorldSpec(("agent",), {"agent": shown}, {"agent": space})).agent_policy("agent")
    agent.reset(np.random.default_rng(0))
    actions = [agent.step({"action_mask": np.array(mask, np.int8), "place": 0}) for _ in range(60)]
    assert all(space.contains(action) for action in actions)
    return {tuple(action.tolist()) if action.shape else int(action) for action in map(np.asarray, actions)}


@pytest.mark.parametrize(("space", "mask", "allowed"), MASKED.values(), ids=MASKED)
def test_random_draws_among_the_actions_that_a_mask_allows(space, mask, allowed):
    assert masked(Random, space, mask) == allowed


@pytest.mark.parametrize(("space", "mask", "allowed"), MASKED.values(), ids=MASKED)
def test_noop_takes_the_first_action_that_a_mask_allows(space, mask, allowed):
    assert masked(Noop, space, mask) == {min(allowed)}
