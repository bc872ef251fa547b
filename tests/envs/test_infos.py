"""However infos travel, they are batched as Gymnasium batches them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.envs.infos import info_of, merge, pack
from stretto.errors import InvalidOutput
from stretto.testing import check_same

# Under one key values have one kind: where they differ, Gymnasium casts or fails by the order of slots.
KINDS = [
    st.integers(-(2**40), 2**40),
    st.floats(width=32),
    st.booleans(),
    st.text(max_size=3),
    st.none(),
    st.integers(0, 100).map(np.int16),
    st.floats(width=32).map(np.float32),
    st.booleans().map(np.bool_),
    st.lists(st.floats(width=32), min_size=2, max_size=2).map(np.array),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.sampled_from("uvw"), st.integers(-9, 9), max_size=3),
    st.dictionaries(st.sampled_from("uv"), st.dictionaries(st.sampled_from("xy"), st.floats(width=32)), max_size=2),
]


class Reference(VectorEnv):
    def __init__(self, count):
        self.num_envs = count


@st.composite
def infos_of_a_step(draw):
    """Return the kinds by key, the infos by slot, and where the slots are split between workers."""
    count = draw(st.integers(1, 7))
    kinds = {key: draw(st.sampled_from(KINDS)) for key in draw(st.lists(st.sampled_from("abcd"), unique=True))}
    everywhere = draw(st.booleans())
    infos = []
    for _ in range(count):
        keys = list(kinds) if everywhere else draw(st.lists(st.sampled_from(list(kinds) or ["a"]), unique=True))
        infos.append({key: draw(kinds[key]) for key in keys if key in kinds})
    cuts = sorted(draw(st.sets(st.integers(1, count))) | {0, count})
    return infos, cuts


@settings(max_examples=300, deadline=None)
@given(infos_of_a_step())
def test_any_infos_split_in_any_way_are_batched_as_gymnasium_does(case):
    infos, cuts = case
    expected = {}
    for slot, info in enumerate(infos):
        expected = Reference(len(infos))._add_info(expected, info, slot)
    pieces = []
    for first, end in itertools.pairwise(cuts):
        entries = [(slot, infos[slot]) for slot in range(first, end) if infos[slot]]
        pieces.append(pack(entries))
    check_same(merge(pieces, len(infos)), expected, "ours and Gymnasium's")


@settings(max_examples=100, deadline=None)
@given(infos_of_a_step())
def test_what_belongs_to_a_row_can_be_read_back(case):
    infos, _ = case
    batched = merge([[(slot, info) for slot, info in enumerate(infos) if info]], len(infos))
    for slot, info in enumerate(infos):
        assert set(info_of(batched, slot)) == set(info)


def test_the_last_info_and_the_first_of_the_next_episode_are_both_there():
    entries = [(0, {"a": 1}), (1, {"final_obs": np.zeros(2), "final_info": {"a": 2}}), (1, {"a": 3})]
    expected = {}
    for slot, info in entries:
        expected = Reference(2)._add_info(expected, info, slot)
    check_same(merge([pack(entries)], 2), expected, "ours and Gymnasium's")


def test_infos_that_do_not_fit_together_are_refused_with_slot_key_and_value():
    with pytest.raises(InvalidOutput, match="'winner' of slot 1 is None"):
        merge([[(0, {"winner": 1}), (1, {"winner": None})]], 2)
