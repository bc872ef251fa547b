"""Priorities of transitions: drawn by their share, new ones first, gone ones never."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.checkpoint import read_folder, write_folder
from stretto.errors import UsageError
from stretto.storage import Priorities, TransitionBuffer, TransitionLayout
from stretto.storage.sum_tree import SumTree
from tests.storage.experience import World, block_of, contents, streams


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3000),
    st.lists(st.tuples(st.integers(0, 2**32), st.sampled_from([1, 40, 1500])), max_size=4),
)
def test_a_leaf_is_found_where_a_running_sum_says(agents, leaves, changes):
    tree, values = SumTree(agents, leaves), np.zeros((agents, leaves))
    for seed, count in changes:
        rng = np.random.default_rng(seed)
        where = rng.integers(0, leaves, (agents, count))
        new = rng.integers(0, 5, (agents, count)).astype(float)
        who = np.broadcast_to(np.arange(agents)[:, None], where.shape)
        tree.set(who, where, new)
        for agent in range(agents):
            for i in range(count):
                values[agent, where[agent, i]] = new[agent, i]
    assert tree.totals.tolist() == values.sum(axis=1).tolist()
    amounts = (np.arange(20) / 20)[None] * tree.totals[:, None]
    found = tree.find(np.floor(amounts))  # whole numbers, so that sums are exact in any order
    for agent in np.flatnonzero(tree.totals):
        wanted = np.searchsorted(np.cumsum(values[agent]), np.floor(amounts[agent]), "right")
        assert found[agent].tolist() == wanted.tolist()


def test_a_leaf_without_value_is_never_found_not_even_by_rounding():
    rng = np.random.default_rng(0)
    tree, where = SumTree(1, 5000), rng.choice(5000, 300, replace=False)[None]
    tree.set(np.zeros_like(where), where, rng.random((1, 300)) * 10.0 ** rng.integers(-18, 3, (1, 300)))
    total = tree.totals[:, None]
    amounts = np.concatenate(
        [total * rng.random((1, 20_000)), total, np.nextafter(total, 0), total * 1.1, total * 0], 1
    )
    assert set(tree.find(amounts)[0].tolist()) <= set(where[0].tolist())


@pytest.mark.parametrize("always", [True, False])
def test_only_what_is_there_is_drawn_and_what_is_new_at_least_as_often_as_any(always):
    world = World(block_of(2, 2), np.random.default_rng(2), always=always)
    with TransitionBuffer(TransitionLayout(world.block, 30, 4)) as buffer:
        priorities = Priorities(buffer.layout.ring)
        rng, seen = np.random.default_rng(0), [set(), set()]
        for _ in range(20):
            buffer.extend(world.piece(4))
            with buffer.snapshot() as snapshot:
                taken = snapshot.range
                batch = snapshot.sample_prioritized(streams(2), 400, priorities, correction=0.5)
                for agent in range(2):
                    there = set(range(taken.first[agent], taken.last[agent])) - set(taken.unfinished[agent])
                    drawn = set(batch.numbers[agent].tolist())
                    assert drawn <= (there or {-1})
                    assert there - seen[agent] <= drawn  # 400 draws, spread, of at most 32: what is new is among them
                    seen[agent] |= there
                errors = np.where(batch.numbers % 2 == 0, 1.0, rng.random(batch.numbers.shape) * 0.1)
                priorities.set(batch.numbers, errors)
                assert batch.weights.max(axis=1).tolist() == [1, 1]


def test_draws_follow_the_priorities_and_weights_take_that_back():
    world = World(block_of(1, 1), np.random.default_rng(2), end_chance=0)
    with TransitionBuffer(TransitionLayout(world.block, 10, 10)) as buffer:
        buffer.extend(world.piece(10))
        priorities = Priorities(buffer.layout.ring, exponent=0.5, least_error=0.0)
        with buffer.snapshot() as snapshot:
            priorities.follow(snapshot.range)
            priorities.set(np.arange(10)[None], np.arange(1, 11)[None] ** 2)
            batch = snapshot.sample_prioritized(streams(1), 55_000, priorities, correction=1.0)
    often = np.bincount(batch.numbers[0], minlength=10)
    assert abs(often - 1000 * np.arange(1, 11)).max() <= 2  # spread draws are almost exact
    assert batch.weights[0] == pytest.approx(1 / (batch.numbers[0] + 1), rel=1e-6)


@pytest.mark.parametrize("always", [True, False])
def test_saved_priorities_and_buffer_go_on_bit_by_bit(always, tmp_path):
    world = World(block_of(2, 2), np.random.default_rng(2), always=always)
    layout = TransitionLayout(world.block, 30, 4, stack=2)

    def learn(buffer, priorities, pieces, rngs):
        found = []
        for piece in pieces:
            buffer.extend(piece)
            with buffer.snapshot() as snapshot:
                batch = snapshot.sample_prioritized(rngs, 16, priorities, correction=0.5, n_steps=2)
            priorities.set(batch.numbers, batch.rewards)
            found.append([*contents(batch), batch.weights.tobytes()])
        return found

    pieces = [world.piece(4) for _ in range(30)]
    with TransitionBuffer(layout) as buffer, TransitionBuffer(layout) as other:
        priorities, restored = Priorities(layout.ring), Priorities(layout.ring)
        learn(buffer, priorities, pieces[:17], streams(2))
        write_folder(tmp_path, buffer.contents() | priorities.contents())
        wanted = learn(buffer, priorities, pieces[17:], streams(2, seed=1))
        files = read_folder(tmp_path)
        other.restore(files)
        restored.restore(files)
        assert learn(other, restored, pieces[17:], streams(2, seed=1)) == wanted
        with pytest.raises(UsageError, match="settings that it was saved with"):
            Priorities(TransitionLayout(world.block, 60, 4).ring).restore(files)
