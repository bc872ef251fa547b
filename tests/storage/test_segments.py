"""On-policy segments: views of what was written, and minibatches by agent."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.errors import UsageError
from stretto.storage import SegmentBuffer, SegmentLayout
from tests.storage.experience import World, block_of, observed, streams


@pytest.mark.parametrize("always", [True, False])
def test_a_segment_is_what_was_written_also_while_the_next_one_is(always):
    world = World(block_of(2, 3), np.random.default_rng(0), 0.6, always)
    with SegmentBuffer(SegmentLayout(world.block, 4)) as buffer:
        piece, before = world.piece(4), None
        for _ in range(5):
            buffer.extend(piece)
            if before is not None:
                before.release()
            before = segment = buffer.snapshot()
            following, upcoming = piece, world.piece(4)
            for written in (None, upcoming):
                if written is not None:
                    buffer.extend(written)
                assert segment.observations["image"].tolist() == piece.observations["image"].tolist()
                assert segment.next_observations["number"][0].tolist() == piece.next_observations["number"][0].tolist()
                for name in ("actions", "acted", "rewards", "terminated", "truncated"):
                    assert getattr(segment, name).tolist() == getattr(following, name).tolist()
            assert np.shares_memory(segment.rewards, buffer.memory.rows["reward"])
            segment.release()
            piece = world.piece(4)
        del segment, before


@pytest.mark.parametrize("always", [True, False])
def test_minibatches_have_every_row_in_which_an_agent_acted_once_and_all_have_one_shape(always):
    world = World(block_of(2, 3), np.random.default_rng(1), always=always)
    with SegmentBuffer(SegmentLayout(world.block, 7)) as buffer:
        piece = world.piece(7)
        buffer.extend(piece)
        with buffer.snapshot() as segment:
            batches = list(segment.minibatches(streams(2), 4, seen=piece.observations["number"][0]))
            again = list(segment.minibatches(streams(2), 4))
    for agent in range(2):
        found = np.concatenate([batch.arrays["seen"][agent][batch.mask[agent]] for batch in batches])
        wanted = piece.observations["number"][0][..., agent][piece.acted[..., agent]]
        assert sorted(found) == sorted(wanted)
        assert found.tolist() != wanted.tolist()  # shuffled
    for batch, same in zip(batches, again, strict=True):
        assert batch.mask.shape == (2, 4)
        numbers = batch.arrays["seen"].astype(np.int64)
        assert (batch.observations["image"] == observed(numbers)["image"]).all()
        assert batch.actions.tolist() == same.actions.tolist()


def test_whole_lanes_are_dealt_once_each():
    world = World(block_of(2, 5), np.random.default_rng(1), end_chance=0.0)
    with SegmentBuffer(SegmentLayout(world.block, 3)) as buffer:
        piece = world.piece(3)
        buffer.extend(piece)
        with buffer.snapshot() as segment:
            batches = list(segment.lane_minibatches(streams(2), 2, rewards=segment.rewards))
    assert [batch.mask.shape for batch in batches] == [(2, 2, 3)] * 3
    for agent in range(2):
        there = np.concatenate([batch.mask[agent, :, 0] for batch in batches])
        dealt = np.concatenate([batch.arrays["rewards"][agent] for batch in batches])[there].tolist()
        assert sorted(dealt) == sorted(piece.rewards[..., agent].T.tolist())


def test_an_agent_gets_the_same_minibatches_whatever_the_others_do():
    world = World(block_of(2, 3), np.random.default_rng(1), 0.0, always=False)
    pieces = [world.piece(6), world.piece(6)]
    mixed = pieces[0].acted.copy()
    mixed[..., 0] = pieces[1].acted[..., 0]
    found = []
    for acted in (pieces[0].acted, mixed):
        with SegmentBuffer(SegmentLayout(world.block, 6)) as buffer:
            piece = pieces[0]
            object.__setattr__(piece, "acted", acted)
            buffer.extend(piece)
            with buffer.snapshot() as segment:
                batches = list(segment.minibatches(streams(2), 4, rewards=segment.rewards))
                found.append([b.arrays["rewards"][1][b.mask[1]].tolist() for b in batches if b.mask[1].any()])
    assert found[0] == found[1]


def test_what_is_no_whole_segment_is_refused():
    world = World(block_of(1, 2), np.random.default_rng(1))
    with SegmentBuffer(SegmentLayout(world.block, 3)) as buffer:
        with pytest.raises(UsageError, match="must be written before one can be taken, got none"):
            buffer.snapshot()
        with pytest.raises(UsageError, match="a segment must have 3 rows, got 2"):
            buffer.extend(world.piece(2))
