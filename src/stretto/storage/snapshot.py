"""What all snapshots have in common: a part of a buffer that its writer keeps, and streams to draw from it by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np

from stretto.errors import UsageError
from stretto.storage.block import Block
from stretto.storage.memory import Hold, RingMemory


class Held(Protocol):
    """The range of a snapshot."""

    @property
    def hold(self) -> Hold: ...


class Snapshot:
    """Shows a part of a buffer until it is released, also by the end of a `with` block.

    In another process it is made of the memory, `RingMemory(layout.ring, Arena(fd))`, and of the range that the owner
    took.
    """

    def __init__(self, memory: RingMemory, hold: Hold) -> None:
        self._memory, self._hold = memory, hold

    def release(self) -> None:
        """Let the writer overwrite it; may be called twice."""
        self._memory.release(self._hold)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


Streams = Sequence[np.random.Generator]
"""A stream for each agent, in the order of its block."""


def checked_streams(streams: Streams, block: Block) -> Streams:
    """Return the streams of a block's agents, if there is one for each."""
    if len(streams) != len(block.agents):
        raise UsageError(f"every agent must have its stream, got {len(streams)} for {len(block.agents)}; give one each")
    return streams
