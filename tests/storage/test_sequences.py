"""Whole sequences and chunks of them, compared with a plain list of what happened."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import UsageError
from stretto.storage import SequenceBuffer, SequenceLayout
from tests.storage.experience import World, block_of, observed, streams


def kept(world, lengths, layout, agent):
    """The numbers of the sequences that should still be there."""
    starts = np.cumsum([0, *[length + 1 for length in lengths]])
    steps, inner_ends, first = world.steps[0, agent], [], 0
    for start, length in zip(starts, lengths, strict=False):
        inner_ends += [start + i for i in range(length - 1) if steps[first + i].ended]
        first += length
    lost = len(inner_ends) - layout.ring.finals_kept
    oldest = max(0, starts[-1] - layout.steps, inner_ends[lost - 1] + 1 if lost > 0 else 0)
    return [i for i in range(len(lengths)) if starts[i] >= oldest]


def check(batch, agent, i, sequence, world, lengths):
    """Compare sequence `i` of an agent with what happened; return its number."""
    steps = world.steps[0, agent][sum(lengths[:sequence]) : sum(lengths[: sequence + 1])]
    start, length = int(batch.starts[agent, i]), int(batch.lengths[agent, i])
    mine = steps[start : start + length]
    shown = batch.mask.shape[-1]
    assert batch.mask[agent, i].tolist() == [t < length for t in range(shown)]
    for name in ("reward", "terminated", "truncated", "acted"):
        values = getattr(batch, name if name != "reward" else "rewards")[agent, i]
        assert values.tolist() == [getattr(step, name) for step in mine] + [0] * (shown - length)
    assert batch.actions[agent, i].tolist() == [list(step.action) for step in mine] + [[0, 0]] * (shown - length)
    at_end = start + length == len(steps)
    assert batch.last[agent, i].tolist() == [at_end and t == length - 1 for t in range(shown)]
    following = steps[start + length].seen if not at_end else steps[-1].final if steps[-1].ended else None
    seen = batch.observations["number"][0][agent, i]
    assert seen[:length].tolist() == [step.seen for step in mine]
    assert following is None or seen[length] == following
    assert not seen[length + 1 :].any()
    assert (batch.observations["image"][agent, i, :length] == observed([step.seen for step in mine])["image"]).all()
    chosen = (batch.ends[0] == agent) & (batch.ends[1] == i)
    assert batch.ends[2][chosen].tolist() == [t for t in range(length) if mine[t].ended and start + t < len(steps) - 1]
    finals = batch.final_observations["number"][0][chosen]
    assert finals.tolist() == [mine[t].final for t in batch.ends[2][chosen]]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    block=st.builds(block_of, st.integers(1, 3), st.just(1), st.booleans()),
    steps=st.integers(8, 60),
    steps_an_end=st.sampled_from([1, 8]),
    chunk=st.integers(1, 9),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=14),
)
def test_every_sequence_and_every_chunk_is_what_a_plain_list_says(seed, block, steps, steps_an_end, chunk, lengths):
    world = World(block, np.random.default_rng(seed))
    layout = SequenceLayout(block, steps, 7, steps_an_end)
    agents = len(block.agents)
    with SequenceBuffer(layout) as buffer:
        for length in lengths:
            buffer.extend(world.piece(length, whole=True))
        with buffer.snapshot() as snapshot:
            there = [kept(world, lengths, layout, agent) for agent in range(agents)]
            assert list(snapshot.range.first) == [min(numbers, default=len(lengths)) for numbers in there]
            batches = [snapshot.sample(streams(agents), 30, by) for by in ("sequence", "length")]
            batches.append(snapshot.sample_chunks(streams(agents), 30, chunk))
    for batch in batches:
        for agent in range(agents):
            numbers, steps = there[agent], world.steps[0, agent]
            if not numbers:
                assert not batch.mask[agent].any()
                assert not batch.observations["number"][0][agent].any()
                continue
            begins = {world.steps[0, agent][sum(lengths[:n])].seen: n for n in numbers}
            every = {
                step.seen: n
                for n in numbers
                for step in world.steps[0, agent][sum(lengths[:n]) : sum(lengths[: n + 1])]
            }
            for i in range(30):
                which = (every if batch is batches[2] else begins)[int(batch.observations["number"][0][agent, i, 0])]
                check(batch, agent, i, which, world, lengths)
                if batch is batches[2]:
                    assert batch.lengths[agent, i] == min(chunk, lengths[which])


def test_sequences_are_drawn_equally_often_or_by_their_lengths_and_chunks_equally_often():
    world = World(block_of(), np.random.default_rng(0), end_chance=0)
    lengths = [1, 2, 5, 7]
    with SequenceBuffer(SequenceLayout(world.block, 40, 7)) as buffer:
        for length in lengths:
            buffer.extend(world.piece(length, whole=True))
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
