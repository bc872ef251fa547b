"""The walker over spaces, and the arrays that their values lie in."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from stretto.spaces import SpaceLayout, assemble, leaves, map_space, parts, same_space
from stretto.testing import check_same

NESTED = spaces.Dict(
    {
        "eyes": spaces.Tuple([spaces.Box(0, 1, (2, 3)), spaces.Box(0, 255, (4,), np.uint8)]),
        "body": spaces.Dict({"speed": spaces.Box(-1, 1, (1,), np.float64), "gear": spaces.Discrete(5, start=-1)}),
        "bits": spaces.MultiBinary(3),
    }
)
LOOSE = spaces.Tuple([spaces.Text(6), NESTED, spaces.Sequence(spaces.Discrete(3)), spaces.MultiDiscrete([2, 3])])
ALL = pytest.mark.parametrize("space", [NESTED, LOOSE, spaces.Discrete(3), spaces.Text(4), spaces.Dict({})], ids=str)


def samples(space, count=4):
    space.seed(3)
    return [space.sample() for _ in range(count)]


def batched(space, values):
    return concatenate(space, values, create_empty_array(space, len(values)))


def test_leaves_come_in_the_order_of_the_keys_each_with_its_path():
    assert [leaf.path for leaf in leaves(NESTED)] == [
        ("bits",),
        ("body", "gear"),
        ("body", "speed"),
        ("eyes", 0),
        ("eyes", 1),
    ]
    assert [(leaf.nbytes, leaf.name) for leaf in leaves(NESTED)][2:4] == [(8, "['body']['speed']"), (24, "['eyes'][0]")]


@ALL
def test_every_leaf_is_visited_once_in_that_order_with_its_own_part_of_each_value(space):
    one, other = samples(space, 2)
    seen = []
    map_space(lambda leaf, *values: seen.append((leaf, *values)), space, one, other)
    for (visited, *values), leaf in zip(seen, leaves(space), strict=True):
        assert visited is leaf.space
        check_same(values, [leaf.get(one), leaf.get(other)], leaf.name)


@ALL
def test_what_is_returned_for_the_leaves_is_put_together_as_values_of_the_space_are(space):
    (value,) = samples(space, 1)
    again = map_space(lambda _, part: part, space, value)
    check_same(again, value, "a value that was taken apart and put together")
    assert type(again) is type(value)


def test_a_value_that_is_none_is_none_for_every_leaf():
    seen = map_space(lambda _, part, missing: missing, NESTED, samples(NESTED, 1)[0], None)
    assert [leaf.get(seen) for leaf in leaves(NESTED)] == [None] * 5


def test_parts_are_those_of_one_level_and_are_put_together_again():
    inner = NESTED["eyes"]
    assert parts(inner) == {0: inner[0], 1: inner[1]}
    assert list(parts(NESTED)) == ["bits", "body", "eyes"]
    assert parts(spaces.Text(3)) is None
    assert assemble(inner, ["left", "right"]) == ("left", "right")
    assert assemble(NESTED, [1, 2, 3]) == {"bits": 1, "body": 2, "eyes": 3}
    with pytest.raises(ValueError, match="zip"):
        assemble(NESTED, [1, 2])


def test_blocks_of_agents_are_taken_apart_and_laid_side_by_side():
    """What multi-agent environments do: a block is (environments, agents, ...)."""
    columns = [batched(NESTED, samples(NESTED, 4)), batched(NESTED, list(reversed(samples(NESTED, 4))))]
    block = map_space(lambda _, *of_agents: np.stack(of_agents, axis=1), NESTED, *columns)
    for agent, column in enumerate(columns):
        check_same(map_space(lambda _, part, j=agent: part[:, j], NESTED, block), column, "the column of an agent")
    row = map_space(lambda _, part: part[2], NESTED, block)
    own = map_space(lambda _, part: part[1], NESTED, row)
    check_same(own, list(iterate(batch_space(NESTED, 4), columns[1]))[2], "an agent's row of an environment")


@ALL
def test_values_that_were_written_into_arrays_come_back_row_by_row_and_as_a_batch(space):
    layout, values = SpaceLayout(space), samples(space)
    arrays = [np.zeros(shape, dtype) for shape, dtype in layout.shapes(len(values))]
    objects = [[None] * len(values) for _ in layout.loose]
    target = layout.target(arrays, lambda leaf, i, part: objects[leaf].__setitem__(i, part))
    for i, value in enumerate(values):
        target[i] = value
    for i, value in enumerate(values):
        check_same(layout.row(arrays, objects, i), value, f"row {i}")
    check_same(layout.batch(arrays, objects), batched(space, values), "the batch")


def calls_while(function):
    """Return the names of the Python functions that a call of another one leads to."""
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names[1:]


def test_arrays_and_plain_numbers_are_written_without_any_function_in_between():
    space = spaces.Dict({"direction": spaces.Discrete(4), "image": spaces.Box(0, 255, (2, 2), np.uint8)})
    layout = SpaceLayout(space)
    arrays = [np.zeros(shape, dtype) for shape, dtype in layout.shapes(1)]
    refused = []
    target = layout.target(arrays, lambda *_: None, refused.append)
    image = np.ones((2, 2), np.uint8)
    for direction in (3, np.int64(3)):
        value = {"direction": direction, "image": image}
        assert calls_while(lambda value=value: target.__setitem__(0, value)) == ["__setitem__"]
    assert not refused
    target[0] = {"direction": 3, "image": [[1, 2], [3, 4]]}  # numpy makes an array of it
    assert not refused
    target[0] = {"direction": 3, "image": np.uint8(7)}
    assert len(refused) == 1
    with pytest.raises((TypeError, ValueError)):
        target[0] = {"direction": None, "image": image}
    assert len(refused) == 2


def test_a_row_is_a_copy_and_a_batch_is_not():
    layout = SpaceLayout(NESTED)
    arrays = [np.zeros(shape, dtype) for shape, dtype in layout.shapes(2)]
    row, batch = layout.row(arrays, [], 1), layout.batch(arrays, [])
    arrays[0][1] = 1
    assert not row["bits"].any()
    assert batch["bits"][1].all()


def test_spaces_are_the_same_if_all_their_leaves_are():
    assert same_space(NESTED, spaces.Dict(NESTED.spaces))
    assert not same_space(NESTED, spaces.Dict({**NESTED.spaces, "bits": spaces.MultiBinary(4)}))
    assert not same_space(NESTED, spaces.Dict({**NESTED.spaces, "more": spaces.Discrete(2)}))
