"""What a collector gives is what a buffer takes."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.collection.collector import Trials
from stretto.storage import Block, Piece, TransitionBuffer, TransitionLayout
from tests.backends import OPTIONS
from tests.collection.test_collector import Remembers, collector
from tests.worlds import Drift, makes


@pytest.mark.parametrize("options", [OPTIONS["serial"], OPTIONS["process"]], ids=["serial", "process"])
def test_segments_of_a_collector_are_stored_as_they_are_and_every_transition_is_right(options):
    with collector(makes(Drift, 4), 3, Remembers, **options) as collecting:
        kind = collecting.worlds.kinds[0]
        block = Block(kind.agents, kind.observation_space, kind.action_space, 3, {"noise": ((), np.float32)}, False)
        stream = collecting.segments(6, Trials(0))
        segments = [next(stream) for _ in range(5)]
    with TransitionBuffer(TransitionLayout(block, 300, 6)) as buffer:
        for segment in segments:
            (rows,) = segment.kinds
            says = {"noise": rows.says["noise"]}
            outcome = rows.rewards, rows.terminated, rows.truncated, segment.following[0]
            buffer.extend(Piece(rows.observations, rows.actions, *outcome, acted=rows.acted, extras=says))
        with buffer.snapshot() as snapshot:
            first, last = snapshot.range.first[0], snapshot.range.last[0]
            there = np.setdiff1d(np.arange(first, last), snapshot.range.unfinished[0])
            batch = snapshot.transitions(there[None], discount=0.5)
    seen, acted, terminated, rewards = (
        np.concatenate([getattr(segment.kinds[0], name) for segment in segments])[:, :, 0]
        for name in ("observations", "acted", "terminated", "rewards")
    )
    known = acted.copy()
    known[-1] &= terminated[-1]  # else it is open whether what follows the last row is a decision
    rows, lanes = np.nonzero(known)
    seen = np.concatenate([seen, segments[-1].following[0][None, :, 0]])
    assert terminated.any()
    assert batch.observations[0].tolist() == seen[rows, lanes].tolist()
    assert batch.next_observations[0].tolist() == seen[rows + 1, lanes].tolist()
    assert batch.rewards[0].tolist() == rewards[rows, lanes].astype(np.float32).tolist()
    assert batch.discounts[0].tolist() == np.where(terminated[rows, lanes], 0, 0.5).tolist()
