"""Whole sequences and chunks of them, compared with a plain list of what happened."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import UsageError
from stretto.storage import SequenceBuffer, SequenceLayout
from tests.storage.experience import World, block_of, observed, streams


def kept(lengths, layout):
    """The numbers of the sequences that should still be there."""
    starts = np.cumsum([0, *[length + 1 for length in lengths]])
    return [i for i in range(len(lengths)) if starts[i] >= starts[-1] - layout.steps]


def check(batch, agent, i, steps):
    """Compare sequence `i` of an agent with what happened in it."""
    start, length = int(batch.starts[agent, i]), int(batch.lengths[agent, i])
    mine = steps[start : start + length]
    shown = batch.mask.shape[-1]
    assert batch.mask[agent, i].tolist() == [t < length for t in range(shown)]
    for name in ("reward", "terminated", "truncated", "acted"):
        values = getattr(batch, name if name != "reward" else "rewards")[agent, i]
        assert values.tolist() == [getattr(step, name) for step in mine] + [0] * (shown - length)
    assert batch.actions[agent, i].tolist() == [list(step.action) for step in mine] + [[0, 0]] * (shown - length)
    at_end = start + length == len(steps) - 1
    assert batch.last[agent, i].tolist() == [at_end and t == length - 1 for t in range(shown)]
    numbers = [step.seen for step in steps[start : start + length + 1]]
    seen = batch.observations["number"][0][agent, i]
    assert seen.tolist() == numbers + [0] * (shown - length)
    assert (batch.observations["image"][agent, i, : length + 1] == observed(numbers)["image"]).all()


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    agents=st.integers(1, 3),
    always=st.booleans(),
    steps=st.integers(8, 60),
    chunk=st.integers(1, 9),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=14),
)
def test_every_sequence_and_every_chunk_is_what_a_plain_list_says(seed, agents, always, steps, chunk, lengths):
    world = World(block_of(agents), np.random.default_rng(seed), always=always)
    layout = SequenceLayout(world.block, steps, 7)
    with SequenceBuffer(layout) as buffer:
        for length in lengths:
            buffer.extend(world.rollout(length))
        with buffer.snapshot() as snapshot:
            there = kept(lengths, layout)
            assert snapshot.range.first == min(there, default=len(lengths))
            batches = [snapshot.sample(streams(agents), 30, by) for by in ("sequence", "length")]
            batches.append(snapshot.sample_chunks(streams(agents), 30, chunk))
    starts = np.cumsum([0, *[length + 1 for length in lengths]])
    for batch in batches:
        for agent in range(agents):
            if not there:
                assert not batch.mask[agent].any()
                assert not batch.observations["number"][0][agent].any()
                continue
            sequences = [world.steps[0, agent][starts[n] : starts[n + 1]] for n in there]
            which = {step.seen: steps for steps in sequences for step in steps}
            for i in range(30):
                steps = which[int(batch.observations["number"][0][agent, i, 0])]
                check(batch, agent, i, steps)
                if batch is batches[2]:
                    assert batch.lengths[agent, i] == min(chunk, len(steps) - 1)
                else:
                    assert batch.lengths[agent, i] == len(steps) - 1


def test_a_sequence_that_was_cut_keeps_what_follows_its_last_step():
    world = World(block_of(2), np.random.default_rng(0), end_chance=0)
    with SequenceBuffer(SequenceLayout(world.block, 40, 4)) as buffer:
        piece = world.piece(4)
        buffer.extend(piece)
        with buffer.snapshot() as snapshot:
            batch = snapshot.sample(streams(2), 1)
    assert batch.lengths.tolist() == [[4], [4]]
    following = piece.next_observations["number"][0][0].tolist()
    assert batch.observations["number"][0][:, 0, -1].tolist() == following


def test_sequences_are_drawn_equally_often_or_by_their_lengths_and_chunks_equally_often():
    world = World(block_of(), np.random.default_rng(0), end_chance=0)
    lengths = [1, 2, 5, 7]
    with SequenceBuffer(SequenceLayout(world.block, 40, 7)) as buffer:
        for length in lengths:
            buffer.extend(world.rollout(length))
        with buffer.snapshot() as snapshot:
            for by, shares in (("sequence", [1, 1, 1, 1]), ("length", lengths)):
                found = snapshot.sample(streams(1), 30_000, by).lengths[0]
                often = np.array([np.count_nonzero(found == length) for length in lengths])
                assert abs(often / 30_000 - np.array(shares) / sum(shares)).max() < 0.02
            chunks = snapshot.sample_chunks(streams(1), 10_000, 3, first_only=["hidden"])
    begins, often = np.unique(chunks.observations["number"][0][0, :, 0], return_counts=True)
    assert len(begins) == 1 + 1 + 3 + 5
    assert abs(often / 10_000 - 0.1).max() < 0.02
    assert chunks.extras["hidden"].tolist() == np.repeat(chunks.observations["number"][0][:, :, :1], 3, -1).tolist()


def test_sequences_of_several_lanes_are_refused():
    with pytest.raises(UsageError, match=r"in a single lane, got 2 lanes; use Block\(lanes=1\)"):
        SequenceLayout(block_of(1, 2), 10, 5)
