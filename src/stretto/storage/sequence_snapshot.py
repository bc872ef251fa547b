"""Drawing whole sequences, or chunks of them, from a range of sequences."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stretto.spaces import Array
from stretto.storage.memory import Hold, RingMemory
from stretto.storage.snapshot import Snapshot, Streams, checked_streams


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """What a snapshot shows: the sequences from `first` to `last` (exclusive). Plain data."""

    hold: Hold
    first: int
    last: int


@dataclass(slots=True)
class SequenceBatch:
    """Sequences by agent, copied out of the buffer: arrays `(agents, count, steps, ...)`, with zeros behind the end of each.

    `observations` have a step more: the one after the last is what followed it. `mask` says which steps there are, `acted`
    in which of them the agent acted, `last` which one ended its sequence; other ends are of episodes inside it, whose last
    observations have a step of their own, in which nobody acted. `starts` is where in its sequence each begins.
    """

    observations: Any
    actions: Any
    rewards: Array
    terminated: Array
    truncated: Array
    extras: dict[str, Array]
    mask: Array
    acted: Array
    last: Array
    lengths: Array
    starts: Array


class SequenceSnapshot(Snapshot):
    """Shows a range of a `SequenceBuffer` until it is released."""

    def __init__(self, memory: RingMemory, taken: SequenceRange) -> None:
        super().__init__(memory, taken.hold)
        self.range = taken
        self._agents = np.arange(len(memory.layout.block.agents))[:, None]

    def sample(self, streams: Streams, count: int, by: Literal["sequence", "length"] = "sequence") -> SequenceBatch:
        """Draw `count` whole sequences for each agent from its own stream.

        Each is as likely as any other, or in proportion to its length. All batches are as long as the longest sequence that
        the buffer can hold: a shape that depended on what others drew could change an agent's last bits.
        """
        longest = self._memory.layout.longest_piece
        sequences, _ = self._draw(streams, count, lambda lengths: lengths if by == "length" else lengths**0)
        return self._batch(sequences, np.zeros_like(sequences), longest, ())

    def sample_chunks(
        self, streams: Streams, count: int, length: int, first_only: Collection[str] = ()
    ) -> SequenceBatch:
        """Draw `count` chunks of `length` consecutive steps for each agent from its own stream, all equally likely.

        A sequence that is shorter is a chunk by itself. Extras named in `first_only`, such as the hidden state that a
        recurrent network begins with, are those of the first step alone: `(agents, count, ...)`.
        """
        sequences, starts = self._draw(streams, count, lambda lengths: np.maximum(lengths - length, 0) + 1)
        return self._batch(sequences, starts, length, first_only)

    def decisions(self, since: int) -> Array:
        """Return how often each agent acted in the sequences from number `since` on, as far as they are still there."""
        table, acted = self._memory.tables["sequences"], self._memory.rows["acted"]
        total = np.zeros(len(self._agents), np.int64)
        for begin, count in table[np.arange(max(since, self.range.first), self.range.last) % len(table)].tolist():
            total += np.count_nonzero(acted[np.arange(begin, begin + count) % len(acted), 0], axis=0)
        return total

    def _draw(self, streams: Streams, count: int, weigh: Any) -> tuple[Array, Array]:
        """Return numbers of sequences, drawn by the weight that `weigh` gives to lengths, and which share of it was hit."""
        table, first, last = self._memory.tables["sequences"], self.range.first, self.range.last
        streams = checked_streams(streams, self._memory.layout.block)
        if first == last:
            none = np.full((len(streams), count), -1, np.int64)
            return none, np.zeros_like(none)
        sums = np.cumsum(weigh(table[np.arange(first, last) % len(table), 1]))
        drawn = np.stack([stream.integers(0, sums[-1], count) for stream in streams])
        which = np.searchsorted(sums, drawn, "right")
        return first + which, drawn - np.where(which > 0, sums[which - 1], 0)

    def _batch(self, sequences: Array, starts: Array, length: int, first_only: Collection[str]) -> SequenceBatch:
        memory, block = self._memory, self._memory.layout.block
        table = memory.tables["sequences"]
        begin, whole = np.moveaxis(table[sequences % len(table)], -1, 0)
        whole = np.where(sequences < 0, -1, whole)  # where there is none, there is not even a first observation
        steps = np.arange(length + 1)
        inside = starts[..., None] + steps
        mask, seen = (inside < whole[..., None])[..., :-1], inside <= whole[..., None]
        rows = begin[..., None] + np.minimum(inside, np.maximum(whole, 0)[..., None])
        places = (rows % memory.layout.rows) * len(self._agents) + self._agents[..., None]

        def taken(name: str, where: Array, there: Array) -> Array:
            values = memory.flat[name].take(where, axis=0)
            values[~there] = 0
            return values

        def by_step(name: str) -> Array:
            return taken(name, places[..., :-1], mask)

        columns = block.observation_columns
        some = sequences >= 0
        return SequenceBatch(
            observations=block.observations.batch([taken(column.name, places, seen) for column in columns], ()),
            actions=block.actions.batch([by_step(column.name) for column in block.action_columns], ()),
            rewards=by_step("reward"),
            terminated=by_step("terminated"),
            truncated=by_step("truncated"),
            extras={
                name: taken(f"extra {name}", places[..., 0], some) if name in first_only else by_step(f"extra {name}")
                for name in block.extras
            },
            mask=mask,
            acted=by_step("acted"),
            last=inside[..., :-1] == whole[..., None] - 1,
            lengths=np.count_nonzero(mask, axis=-1),
            starts=starts,
        )
