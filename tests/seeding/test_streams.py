"""A stream is named by its path alone."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.seeding import SEED_BITS, SeedTree, episode_seed

PATHS = [(), ("a",), ("b",), ("a", "b"), ("ab",), ("a", 1), ("a1",), (1,), ("1",), (11,), (1, 1), ("a", ""), ("", "a")]


def test_every_path_is_a_stream_of_its_own():
    trees = [SeedTree(root).child(*path) for root in (0, 1) for path in PATHS]
    assert len({tree.entropy() for tree in trees}) == len(trees)
    assert len({tree.generator().random() for tree in trees}) == len(trees)


def test_a_path_is_the_same_however_it_is_walked_and_in_every_version():
    tree = SeedTree(7).child("slot", 3)
    assert tree.entropy() == SeedTree(7).child("slot").child(3).entropy()
    assert (tree.seed(), repr(tree)) == (879_107_086, "SeedTree(7/slot/3)")
    assert tree.generator().integers(1 << 40) == 746_107_376_912


def test_a_generator_begins_at_the_start_of_its_stream_each_time():
    tree = SeedTree(np.int64(3))
    assert tree.generator().random(5).tolist() == tree.generator().random(5).tolist()


def test_a_seed_fits_every_library():
    assert max(SeedTree(root).seed() for root in range(200)).bit_length() == SEED_BITS


@pytest.mark.parametrize("seed", [0, 5])
def test_the_first_episode_has_the_seed_of_its_slot_and_each_later_one_a_key_of_its_own(seed):
    seeds = [episode_seed(seed, episode) for episode in range(5)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 5
