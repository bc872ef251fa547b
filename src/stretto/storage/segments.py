"""On-policy experience: the last segment of all lanes, while the next one may already be written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stretto.errors import UsageError
from stretto.spaces import Array
from stretto.storage.block import Block, Piece
from stretto.storage.buffer import Buffer, Snapshot, Streams, checked_streams
from stretto.storage.memory import Hold, RingLayout, RingMemory


@dataclass(frozen=True)
class SegmentLayout:
    """A `SegmentBuffer` for segments of `rows` rows: one to learn from, and one to be written meanwhile."""

    block: Block
    rows: int

    @cached_property
    def ring(self) -> RingLayout:
        """Where everything lies. Each segment has a row more, for what follows it, and so always lies in one piece."""
        return RingLayout(self.block, self.block.outcome_columns, self.rows + 1, self.rows)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What else must be equal for one buffer to load what another one saved."""
        return {}


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Which segment a snapshot shows: the one that begins with row `start`. Plain data."""

    hold: Hold
    start: int


@dataclass(slots=True)
class SegmentBatch:
    """Rows of a segment by agent, copied: `(agents, size, ...)`, or `(agents, size, rows, ...)` for whole lanes.

    `arrays` are those that the learner gave, by name. What a false `mask` stands at is there to keep the shape.
    """

    observations: Any
    actions: Any
    extras: dict[str, Array]
    arrays: dict[str, Array]
    mask: Array


class SegmentSnapshot(Snapshot):
    """Shows a segment until it is released: arrays `(rows, lanes, agents, ...)` that are views, to be read alone.

    What follows a row is the next one, and `next_observations` `(lanes, agents, ...)` follow the last. The last observation
    of an episode has a row of its own, in which nobody `acted`.
    """

    def __init__(self, memory: RingMemory, taken: SegmentRange) -> None:
        super().__init__(memory, taken.hold)
        self.range = taken
        block, count = memory.layout.block, memory.layout.longest_piece
        start = taken.start % memory.layout.rows
        shown = {name: array[start : start + count] for name, array in memory.rows.items()}
        self._shown, self._block = shown, block
        self.observations: Any = self._together(shown)
        self.next_observations: Any = self._together({name: a[start + count] for name, a in memory.rows.items()})
        self.actions: Any = block.actions.batch([shown[column.name] for column in block.action_columns], ())
        self.rewards, self.terminated, self.truncated = shown["reward"], shown["terminated"], shown["truncated"]
        self.extras = {name: shown[f"extra {name}"] for name in block.extras}
        self.acted = shown["acted"]

    def _together(self, arrays: Mapping[str, Array]) -> Any:
        columns = self._block.observation_columns
        return self._block.observations.batch([arrays[column.name] for column in columns], ())

    def minibatches(self, streams: Streams, size: int, **arrays: Array) -> Iterator[SegmentBatch]:
        """Yield all rows in which agents acted, in batches of `size`, shuffled by each agent's own stream.

        `arrays` are the learner's own, such as advantages, `(rows, lanes, agents, ...)`. Batches of an agent that acted
        less often than others, or not at all, are filled up with masked rows.
        """
        by_agent = self.acted.reshape(-1, len(self._block.agents)).T
        order = [
            stream.permutation(np.flatnonzero(mine))
            for stream, mine in zip(checked_streams(streams, self._block), by_agent, strict=True)
        ]
        for index, there in _dealt(order, size):
            yield self._batch(index * len(order) + np.arange(len(order))[:, None], there, arrays)

    def lane_minibatches(self, streams: Streams, size: int, **arrays: Array) -> Iterator[SegmentBatch]:
        """Yield all lanes, whole, in batches of `size`, shuffled by each agent's own stream: for recurrent networks."""
        count, lanes, agents = self.rewards.shape
        order = [stream.permutation(lanes) for stream in checked_streams(streams, self._block)]
        for index, there in _dealt(order, size):
            rows = index[..., None] + np.arange(count) * lanes
            places = rows * agents + np.arange(agents)[:, None, None]
            yield self._batch(places, there[..., None] & self.acted.reshape(-1).take(places), arrays)

    def _batch(self, places: Array, mask: Array, arrays: Mapping[str, Array]) -> SegmentBatch:
        def taken(array: Array) -> Array:
            return array.reshape(-1, *array.shape[3:]).take(places, axis=0)

        block = self._block
        observed = {column.name: taken(self._shown[column.name]) for column in block.observation_columns}
        return SegmentBatch(
            self._together(observed),
            block.actions.batch([taken(self._shown[column.name]) for column in block.action_columns], ()),
            {name: taken(array) for name, array in self.extras.items()},
            {name: taken(array) for name, array in arrays.items()},
            mask,
        )


def _dealt(order: list[Array], size: int) -> Iterator[tuple[Array, Array]]:
    """Yield what each agent's order has, `size` at a time, and where there is any: `(agents, size)`."""
    batches = -(-max(map(len, order)) // size)
    index = np.zeros((len(order), batches * size), np.int64)
    there = np.zeros(index.shape, np.bool_)
    for agent, mine in enumerate(order):
        index[agent, : len(mine)], there[agent, : len(mine)] = mine, True
    for begin in range(0, batches * size, size):
        yield index[:, begin : begin + size], there[:, begin : begin + size]


class SegmentBuffer(Buffer[SegmentLayout]):
    """Keeps the last segment: T rows of every lane and agent, and what follows."""

    def extend(self, piece: Piece) -> None:
        """Write a segment.

        Raises:
            UsageError: if it does not fit the layout.
            SnapshotHeld: if the segment before the last is still held after the limit. Nothing was written.
        """
        rows = self.layout.block.rows(piece)
        if rows.count != self.layout.rows:
            raise UsageError(f"a segment must have {self.layout.rows} rows, got {rows.count}; write whole segments")
        if rows.following is None:
            raise UsageError("a segment must have next_observations, got none; give what follows its last row")
        self._ring.make_room(rows.count)
        self._ring.put_rows(rows, rows.outcome)
        self._ring.head += rows.count + 1

    def take(self) -> SegmentRange:
        """Hold the last segment; return its range, which can be sent to another process.

        Raises:
            UsageError: if there is none yet.
        """
        if not self._ring.head:
            raise UsageError("a segment must be written before one can be taken, got none; extend the buffer first")
        return SegmentRange(self._ring.hold(), self._ring.head - self.layout.rows - 1)

    def snapshot(self) -> SegmentSnapshot:
        """Hold and show the last segment."""
        return SegmentSnapshot(self.memory, self.take())

    def state(self) -> dict[str, Array]:
        """Return the last segment by column, with what follows it, copied: arrays (agents, rows, lanes, ...)."""
        start, count = (self._ring.head - self.layout.rows - 1) % self.layout.ring.rows, self.layout.rows + 1
        shown = {name: rows[start : start + count] for name, rows in self.memory.rows.items()}
        return {name: np.ascontiguousarray(np.moveaxis(rows, 2, 0)) for name, rows in shown.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Let the last segment be the one that `state` has returned; no snapshot is held any more."""
        self._ring.set_counters({"head": self.layout.rows + 1})
        for name, rows in self.memory.rows.items():
            rows[: self.layout.rows + 1] = np.moveaxis(state[name], 0, 2)
