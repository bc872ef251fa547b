"""Drawing whole sequences, or chunks of them, from a range of sequences."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stretto.spaces import Array
from stretto.storage.buffer import Snapshot, Streams, checked_streams
from stretto.storage.memory import Hold, RingMemory


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """What a snapshot shows: the sequences from `first` (of each agent) to `last` (exclusive). Plain data."""

    hold: Hold
    first: tuple[int, ...]
    last: int

    @property
    def counts(self) -> list[int]:
        """How many sequences each agent has."""
        return [self.last - first for first in self.first]


@dataclass(slots=True)
class SequenceBatch:
    """Sequences by agent, copied out of the buffer: arrays `(agents, count, steps, ...)`, with zeros behind the end of each.

    `observations` have a step more: the one after the last is what followed it. `mask` says which steps there are, `acted`
    in which of them the agent acted, `last` which one ended its sequence; other ends are of episodes inside it. What was
    seen at those is in `final_observations`, in the order of `ends`: arrays of agents, sequences and steps. `starts` is
    where in its sequence each begins.
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
    ends: tuple[Array, Array, Array]
    final_observations: Any
    lengths: Array
    starts: Array


class SequenceSnapshot(Snapshot):
    """Shows a range of a `SequenceBuffer` until it is released."""

    def __init__(self, memory: RingMemory, taken: SequenceRange) -> None:
        super().__init__(memory, taken.hold)
        self.range = taken
        self._agents = np.arange(len(taken.first))[:, None]

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

    def _draw(self, streams: Streams, count: int, weigh: Any) -> tuple[Array, Array]:
        """Return numbers of sequences, drawn by the weight that `weigh` gives to lengths, and which share of it was hit."""
        table, last = self._memory.tables["sequences"], self.range.last
        sequences = np.full((len(self._agents), count), -1, np.int64)
        shares = np.zeros_like(sequences)
        sums: dict[int, Array] = {}
        for agent, stream in enumerate(checked_streams(streams, self._memory.layout.block)):
            first = self.range.first[agent]
            if first == last:
                continue
            if first not in sums:
                sums[first] = np.cumsum(weigh(table[np.arange(first, last) % len(table), 1]))
            drawn = stream.integers(0, sums[first][-1], count)
            which = np.searchsorted(sums[first], drawn, "right")
            sequences[agent] = first + which
            shares[agent] = drawn - np.where(which > 0, sums[first][which - 1], 0)
        return sequences, shares

    def _batch(self, sequences: Array, starts: Array, length: int, first_only: Collection[str]) -> SequenceBatch:
        memory, block = self._memory, self._memory.layout.block
        table = memory.tables["sequences"]
        begin, whole = np.moveaxis(table[sequences % len(table)], -1, 0)
        whole = np.where(sequences < 0, -1, whole)  # an agent without any has not even a first observation
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

        finals = np.where(mask, memory.flat["final"].take(places[..., :-1]), -1)
        ends = np.nonzero(finals >= 0)
        where_final = finals[ends] * len(self._agents) + ends[0]
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
            acted=mask if block.always_acts else by_step("acted"),
            last=inside[..., :-1] == whole[..., None] - 1,
            ends=(ends[0], ends[1], ends[2]),
            final_observations=block.observations.batch(
                [memory.flat_finals[column.name].take(where_final, axis=0) for column in columns], ()
            ),
            lengths=np.count_nonzero(mask, axis=-1),
            starts=starts,
        )
