"""Chunks of consecutive rows: what networks with a memory learn from, and what followed each decision in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stretto.errors import UsageError
from stretto.policies.networks.network import Network
from stretto.spaces import Array
from stretto.storage import SequenceBatch, SequenceLayout, SequenceSnapshot
from stretto.training.learners.base import LearnerBlock
from stretto.training.learners.judged import Streams
from stretto.training.n_step import returns


class ChunkSettings(Protocol):
    """How chunks are drawn: so many that they have `batch` rows together, from the last `buffer` rows."""

    @property
    def rows(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def buffer(self) -> int: ...

    @property
    def chunk(self) -> int: ...

    @property
    def burn_in(self) -> int: ...

    @property
    def discount(self) -> float: ...


class ChunkSource:
    """Draws chunks of consecutive rows for each agent from its own stream.

    The first `burn_in` rows of a chunk are there to bring the memory, which older weights have made, up to date
    (Kapturowski et al., 2019). A sequence is what one environment gave between two times of learning.
    """

    def __init__(self, learner: str, block: LearnerBlock, settings: ChunkSettings, state_width: int) -> None:
        self._pace, self._length = settings, settings.burn_in + settings.chunk
        if settings.rows < self._length:
            raise UsageError(
                f"{learner} with a memory must collect at least burn_in + chunk rows, {self._length}, at a time, got rows="
                f"{settings.rows}; collect more, or learn from shorter chunks"
            )
        self._count = max(1, settings.batch // settings.chunk)
        stored = replace(block.storage({"memory": ((state_width,), np.float32)}), lanes=1)
        self.layout = SequenceLayout(stored, settings.buffer, settings.rows, pieces=block.lanes)
        self._decided = np.zeros(len(block.agents), np.int64)
        self._sequences = np.zeros(1, np.int64)  # that were taken note of

    def follow(self, seen: SequenceSnapshot) -> tuple[Array, Array]:
        """Take note of what is new; return how many decisions each agent has made so far, and how many are there."""
        self._decided += seen.decisions(int(self._sequences[0]))
        self._sequences[0] = seen.range.last
        return self._decided, np.minimum(self._decided, (seen.range.last - seen.range.first) * self._pace.rows)

    def sample(self, seen: SequenceSnapshot, streams: Streams) -> SequenceBatch:
        """Draw chunks."""
        return seen.sample_chunks(streams, self._count, self._length)

    def followed(self, batch: SequenceBatch, n_steps: int = 1) -> Followed:
        """Return what followed the decisions in the rows after the first ones."""
        burn = self._pace.burn_in
        found = returns(
            *(np.moveaxis(array, 2, 0) for array in (batch.rewards, batch.acted, batch.terminated, batch.truncated)),
            n_steps=n_steps,
            discount=self._pace.discount,
        )
        rewards, discounts, ahead, known = (
            torch.from_numpy(flat(np.moveaxis(array[burn:], 0, 2)))
            for array in (found.rewards, found.discounts, (found.ahead - burn) * self._count, found.known)
        )
        ahead += torch.arange(self._count).repeat(self._pace.chunk)
        return Followed(rewards, discounts, ahead.clamp(min=0), known / known.sum(1, keepdim=True).clamp(min=1))

    def state(self) -> dict[str, Array]:
        """Return all that it remembers, as views."""
        return {"decisions": self._decided, "sequences": self._sequences}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        for name, mine in self.state().items():
            mine[...] = state[name]


@dataclass(frozen=True)
class Followed:
    """What followed decisions, (agents, rows): a decision is worth `rewards + discounts * value(ahead)`.

    `ahead` is the number of a row, perhaps of one after the last. `weights` is how much each row counts.
    """

    rewards: Tensor
    discounts: Tensor
    ahead: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Chunk:
    """What networks see: `rows`, `resets` and `acted` are (agents, time, chunks, ...), `states` (agents, chunks, width)."""

    rows: Tensor
    states: Tensor
    resets: Tensor
    acted: Tensor
    mask: Array | None

    @classmethod
    def of(cls, network: Network, batch: SequenceBatch) -> Chunk:
        acted, memory = batch.acted, batch.extras["memory"]
        first = acted.argmax(-1)[..., None, None]  # until it acts, nothing changes what it remembers
        states = np.take_along_axis(memory, first, 2)[:, :, 0]
        begins = acted & ~memory.any(-1)  # an agent remembers nothing before its first decision
        after = np.zeros((*acted.shape[:2], 1), np.bool_)  # nobody has acted yet on the row after the last
        flags = [np.concatenate([flag, after], 2).swapaxes(1, 2) for flag in (begins, acted)]
        rows = network.inputs.rows(batch.observations).transpose(1, 2).contiguous()
        resets, acts = (torch.from_numpy(np.ascontiguousarray(flag)) for flag in flags)
        return cls(rows, torch.from_numpy(states), resets, acts, network.inputs.allowed(batch.observations))

    def seen_by(self, network: Network, burn_in: int) -> Tensor:
        """Return what the towers of a network take of the rows after the first ones: (agents, time x chunks, width)."""
        states: Tensor | None = self.states
        if burn_in:
            with torch.no_grad():
                states = network.recall(*self._at(slice(burn_in), states))[1]
        return network.recall(*self._at(slice(burn_in, None), states))[0]

    def _at(self, times: slice, states: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        return self.rows[:, times], states, self.resets[:, times], self.acted[:, times]

    def allowed(self, burn_in: int) -> Any:
        """Return which actions are allowed in the rows after the first ones."""
        return None if self.mask is None else flat(self.mask[:, :, burn_in:])


def flat(array: Array) -> Array:
    """Return (agents, chunks, time, ...) as (agents, time x chunks, ...)."""
    moved = np.ascontiguousarray(array.swapaxes(1, 2))
    return moved.reshape(moved.shape[0], -1, *moved.shape[3:])
