"""Snapshots that are held, in this process and in others; saving and loading."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from stretto.errors import DamagedCheckpoint, ResourceError, SnapshotHeld, UsageError, WorkerDied
from stretto.storage import (
    Patience,
    RingMemory,
    SegmentBuffer,
    SegmentLayout,
    SequenceBuffer,
    SequenceLayout,
    TransitionBuffer,
    TransitionLayout,
    TransitionSnapshot,
)
from stretto.workers.arena import Arena
from stretto.workers.backends import PROCESS
from stretto.workers.requests import sender
from stretto.workers.supervisor import Supervisor
from tests.storage.experience import World, block_of, contents, streams

KINDS = ["transitions", "decisions", "sequences", "segments"]


def make(kind, seed=0, **memory):
    """A world, a buffer for it, and the pieces to write into it."""
    block = block_of(2, 1 if kind == "sequences" else 3)
    world = World(block, np.random.default_rng(seed), always=kind != "decisions")
    if kind == "sequences":
        return world, SequenceBuffer(SequenceLayout(world.block, 40, 6), **memory), lambda: world.rollout(6)
    if kind == "segments":
        return world, SegmentBuffer(SegmentLayout(world.block, 6), **memory), lambda: world.piece(6)
    return world, TransitionBuffer(TransitionLayout(world.block, 90, 6, 2), **memory), lambda: world.piece(6)


def shown(snapshot):
    """What a snapshot of any kind shows, as bytes."""
    if isinstance(snapshot, TransitionSnapshot):
        return contents(snapshot.sample(streams(2), 40, n_steps=2))
    if hasattr(snapshot, "minibatches"):
        batches = list(snapshot.minibatches(streams(2), 5, rewards=snapshot.rewards))
        return [(b.observations["image"].tobytes(), b.arrays["rewards"].tobytes()) for b in batches]
    batch = snapshot.sample(streams(2), 20)
    return [
        batch.observations["image"].tobytes(),
        batch.rewards.tobytes(),
        batch.mask.tobytes(),
        batch.lengths.tolist(),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_waits_for_a_snapshot_and_goes_on_when_it_is_released(kind):
    looks = []

    def wait(seconds):
        looks.append(shown(snapshot) == before)
        if len(looks) == 3:
            snapshot.release()

    _, buffer, piece = make(kind, patience=Patience(60, wait))
    with buffer:
        for _ in range(20):
            buffer.extend(piece())
        snapshot = buffer.snapshot()
        before = shown(snapshot)
        for _ in range(40):
            buffer.extend(piece())
        assert looks == [True] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_that_is_not_released_in_time_is_an_error_and_nothing_is_written(kind):
    _, buffer, piece = make(kind, patience=Patience(0.0))
    with buffer:
        for _ in range(20):
            buffer.extend(piece())
        snapshot = buffer.snapshot()
        before = shown(snapshot)
        with pytest.raises(
            SnapshotHeld, match=r"must be released before .* got 1 still held after 0 s; release it, or drop"
        ):
            for _ in range(40):
                refused = piece()
                buffer.extend(refused)
        assert shown(snapshot) == before
        buffer.drop(snapshot.range)
        buffer.extend(refused)  # what was refused can be written then
        newer = buffer.snapshot()
        snapshot.release()  # once more, which must not release the newer one in its place
        with pytest.raises(SnapshotHeld):
            for _ in range(40):
                buffer.extend(piece())
        newer.release()


def test_too_many_snapshots_are_refused():
    _, buffer, piece = make("transitions")
    with buffer:
        buffer.extend(piece())
        held = [buffer.snapshot() for _ in range(64)]
        with pytest.raises(UsageError, match="at most 64 snapshots can be held at once"):
            buffer.snapshot()
        held[10].release()
        buffer.snapshot()


# --- other processes ------------------------------------------------------------------------------------------


class Reader:
    """What a learner's worker does with a buffer: reads a range that it is sent, and releases it when it is told to."""

    def __init__(self, port, layout):
        self.memory = RingMemory(layout.ring, port.arena)

    def handle(self, message):
        match message:
            case ("read", taken):
                self.snapshot = TransitionSnapshot(self.memory, taken)
                return shown(self.snapshot)
            case "release":
                return self.snapshot.release()
            case "die":
                return os.kill(os.getpid(), signal.SIGKILL)
            case _:
                return None  # it was started

    def close(self):
        pass


@contextmanager
def read_elsewhere(kind):
    """A buffer in the memory of a worker's process, its pieces, and how to ask the worker."""
    layout = make(kind)[1].layout
    with Supervisor(PROCESS) as supervisor:
        supervisor.arena.allocate(layout.ring.nbytes)
        seat = supervisor.add_seat(partial(Reader, layout=layout))
        _, buffer, piece = make(kind, arena=supervisor.arena, patience=Patience(0.0))
        for _ in range(20):
            buffer.extend(piece())

        def ask(message):
            (answer,) = supervisor.settle([supervisor.ask(seat, sender(message), "reading", 60)])
            return answer

        yield buffer, piece, ask


def write_until_held(buffer, piece):
    """Write for as long as nothing is overwritten that is held; return the piece that was refused."""
    with pytest.raises(SnapshotHeld):
        while True:
            refused = piece()
            buffer.extend(refused)
    return refused


@pytest.mark.parametrize("kind", ["transitions", "decisions"])
def test_another_process_reads_the_same_and_releases_it(kind):
    with read_elsewhere(kind) as (buffer, piece, ask):
        for _ in range(2):
            taken = buffer.take()
            there = ask(("read", taken))
            assert there == shown(TransitionSnapshot(buffer.memory, taken))
            refused = write_until_held(buffer, piece)
            assert ask(("read", taken)) == there
            ask("release")
            buffer.extend(refused)


def test_what_a_process_held_that_died_can_be_dropped():
    with read_elsewhere("transitions") as (buffer, piece, ask):
        taken = buffer.take()
        ask(("read", taken))
        refused = write_until_held(buffer, piece)
        with pytest.raises(WorkerDied):
            ask("die")  # while it serves this, so that no other worker can answer in its place
        buffer.drop(taken)
        buffer.extend(refused)


def test_several_buffers_lie_in_one_arena():
    (_, first, pieces), (_, second, others) = make("transitions"), make("segments")
    arena = Arena.create(shared=True)
    try:
        arena.allocate(first.layout.ring.nbytes + second.layout.ring.nbytes)
        shared = TransitionBuffer(first.layout, arena=arena)
        segments = SegmentBuffer(second.layout, arena=arena, offset=first.layout.ring.nbytes)
        for _ in range(20):
            piece, other = pieces(), others()
            for buffer, what in ((first, piece), (shared, piece), (second, other), (segments, other)):
                buffer.extend(what)
        assert shown(shared.snapshot()) == shown(first.snapshot())
        assert shown(segments.snapshot()) == shown(second.snapshot())
        segments.close()  # it is not this one's to close
        assert arena.fd >= 0
    finally:
        arena.close()


def test_what_cannot_fit_into_memory_is_refused_at_once():
    layout = TransitionLayout(block_of(), 10**12, 10)
    for shared in (False, True):
        with pytest.raises(
            ResourceError, match=r"1,000,000,000,000 steps of a buffer take .* GB free; keep fewer steps"
        ):
            TransitionBuffer(layout, shared=shared)


# --- saving ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("written", [1, 3, 16, 40])
def test_a_loaded_buffer_goes_on_bit_by_bit(kind, written, tmp_path):
    _, buffer, piece = make(kind)
    _, other, _ = make(kind, shared=True, patience=Patience(0.0))
    _, junk, junk_piece = make(kind, seed=1)
    with buffer, other, junk:
        for _ in range(written):
            buffer.extend(piece())
        for _ in range(5):
            other.extend(junk_piece())
        stale = other.snapshot()  # not held any more after loading
        buffer.save(tmp_path / "x")
        buffer.save(tmp_path / "x")
        other.load(tmp_path / "x")
        for _ in range(40):
            assert shown(buffer.snapshot()) == shown(other.snapshot())
            buffer._ring._forget_released()
            for each in (buffer, other):
                each.memory.holds[:] = 0
            new = piece()
            buffer.extend(new)
            other.extend(new)
        stale.release()


def test_what_was_saved_is_refused_if_it_is_damaged_or_of_another_layout(tmp_path):
    world, buffer, piece = make("transitions")
    with buffer:
        buffer.extend(piece())
        buffer.save(tmp_path)
        for other, message in (
            (
                TransitionBuffer(TransitionLayout(world.block, 900, 6, 2)),
                r"got capacity 30, not 300; make it alike",
            ),
            (
                TransitionBuffer(TransitionLayout(block_of(3, 3), 90, 6, 2)),
                r"got agents \['agent_0', 'agent_1'\], not \[",
            ),
            (SegmentBuffer(SegmentLayout(world.block, 6)), "kind 'TransitionBuffer', not 'SegmentBuffer'"),
        ):
            with other, pytest.raises(UsageError, match=message):
                other.load(tmp_path)
        (path,) = tmp_path.glob("buffer-*.safetensors")
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match="sha256"):
            buffer.load(tmp_path)
