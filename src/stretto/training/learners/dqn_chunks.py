"""What DQN learns from if its networks have a memory: chunks of sequences, with the memory that the actor had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.errors import UsageError
from stretto.policies.networks.network import Network
from stretto.policies.networks.values import ActionValues
from stretto.spaces import Array
from stretto.storage import SequenceBatch, SequenceLayout, SequenceSnapshot
from stretto.training.learners.base import LearnerBlock
from stretto.training.learners.dqn_settings import DqnSettings
from stretto.training.learners.judged import Judged, Streams, draw_shares
from stretto.training.learners.targets import TargetNetwork
from stretto.training.n_step import returns


class Chunks:
    """Draws chunks of consecutive rows for each agent from its own stream, and judges what was done in them.

    The first `burn_in` rows of a chunk are there to bring the memory, which older weights have made, up to date
    (Kapturowski et al., 2019). A sequence is what one environment gave between two times of learning.
    """

    def __init__(self, block: LearnerBlock, settings: DqnSettings, values: ActionValues, target: TargetNetwork) -> None:
        self._settings, self._values, self._target = settings, values, target
        self._length = settings.burn_in + settings.chunk
        if settings.rows < self._length:
            raise UsageError(
                f"dqn with a memory must collect at least burn_in + chunk rows, {self._length}, at a time, got rows="
                f"{settings.rows}; collect more, or learn from shorter chunks"
            )
        if settings.priority_exponent is not None:
            raise UsageError(
                f"dqn with a memory draws all chunks equally often, got priority_exponent={settings.priority_exponent}; "
                f"leave it out"
            )
        self._count = max(1, settings.batch // settings.chunk)
        extras = {"memory": ((values.network.state_width,), np.float32)}
        stored = replace(block.storage(extras), lanes=1)
        self.layout = SequenceLayout(stored, settings.buffer, settings.rows, pieces=block.lanes)
        self._decided = np.zeros(len(block.agents), np.int64)
        self._sequences = np.zeros(1, np.int64)  # that were taken note of

    def follow(self, seen: SequenceSnapshot) -> tuple[Array, Array]:
        """Take note of what is new; return how many decisions each agent has made so far, and how many are there."""
        self._decided += seen.decisions(int(self._sequences[0]))
        self._sequences[0] = seen.range.last
        return self._decided, np.minimum(self._decided, (seen.range.last - seen.range.first) * self._settings.rows)

    def judge(self, seen: SequenceSnapshot, streams: Streams, progress: float) -> Judged:
        """Draw chunks and judge what was done in them."""
        settings, values, burn = self._settings, self._values, self._settings.burn_in
        batch = seen.sample_chunks(streams, self._count, self._length)
        chunk = _Chunk.of(values.network, batch)
        rows = settings.chunk * self._count
        shares = draw_shares(streams, rows, settings.quantiles)
        next_shares = draw_shares(streams, rows + self._count, settings.quantiles)
        now = chunk.seen_by(values.network, burn)
        with torch.no_grad():
            next_seen = chunk.seen_by(self._target.network, burn)
            online = now.detach() if settings.double else None
            worth = self._target.ahead(next_seen, online, chunk.allowed(burn), next_shares)
        found = returns(
            *(np.moveaxis(array, 2, 0) for array in (batch.rewards, batch.acted, batch.terminated, batch.truncated)),
            n_steps=settings.n_steps,
            discount=settings.discount,
        )
        rewards, discounts, ahead, known = (
            torch.from_numpy(_flat(np.moveaxis(array[burn:], 0, 2)))
            for array in (found.rewards, found.discounts, (found.ahead - burn) * self._count, found.known)
        )
        ahead += torch.arange(self._count).repeat(settings.chunk)
        worth = worth.gather(1, ahead.clamp(min=0)[..., None].expand(-1, -1, worth.shape[-1]))
        targets = rewards[..., None] + discounts[..., None] * worth
        chosen = values.branches.picked(torch.from_numpy(_flat(batch.actions[:, :, burn:])))
        taken = values.of(values(now[:, :rows], shares), chosen)
        weights = known / known.sum(1, keepdim=True).clamp(min=1)
        return Judged(taken, targets, shares, weights, batch)

    def learned(self, judged: Judged, errors: Tensor, moving: Array) -> None:
        """Take note of how large errors were: all chunks stay equally likely."""

    def state(self) -> dict[str, Array]:
        """Return all that it remembers, as views."""
        return {"decisions": self._decided, "sequences": self._sequences}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        for name, mine in self.state().items():
            mine[...] = state[name]


@dataclass(frozen=True)
class _Chunk:
    """What networks see: `rows`, `resets` and `acted` are (agents, time, chunks, ...), `states` (agents, chunks, width)."""

    rows: Tensor
    states: Tensor
    resets: Tensor
    acted: Tensor
    mask: Array | None

    @classmethod
    def of(cls, network: Network, batch: SequenceBatch) -> _Chunk:
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
        return None if self.mask is None else _flat(self.mask[:, :, burn_in:])


def _flat(array: Array) -> Array:
    """Return (agents, chunks, time, ...) as (agents, time x chunks, ...)."""
    moved = np.ascontiguousarray(array.swapaxes(1, 2))
    return moved.reshape(moved.shape[0], -1, *moved.shape[3:])
