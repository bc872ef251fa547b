"""What SAC learns from: single transitions, or chunks of sequences if its networks have a memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.policies.networks.network import Network
from stretto.policies.networks.soft_actors import SoftPolicy
from stretto.spaces import Array
from stretto.storage import SequenceSnapshot, TransitionLayout, TransitionSnapshot
from stretto.training.learners.base import LearnerBlock
from stretto.training.learners.chunk import Chunk, ChunkSource, flat
from stretto.training.learners.judged import Streams
from stretto.training.learners.sac_settings import SacSettings


@dataclass(frozen=True)
class Decisions:
    """Decisions of each agent, (agents, rows, ...), as networks take them: what was seen and done, and what followed.

    `seen` is what towers take. What follows was seen by the critics (`follows`) and by their targets (`follows_target`); what
    it is worth counts by `discounts`. `weights` is how much each row counts; `batch` is what was drawn.
    """

    seen: Tensor
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    follows: Tensor
    follows_target: Tensor
    weights: Tensor
    batch: Any


class SoftTransitions:
    """Draws transitions of each agent from its own stream."""

    def __init__(self, block: LearnerBlock, settings: SacSettings, policy: SoftPolicy, target: Network) -> None:
        self._settings, self._policy, self._target = settings, policy, target
        self.layout = TransitionLayout(block.storage(), settings.buffer, settings.rows)

    def follow(self, seen: TransitionSnapshot) -> tuple[Array, Array]:
        """Take note of what is new; return how many decisions each agent has made so far, and how many are there."""
        counts = np.array(seen.range.counts)
        return np.where(counts > 0, seen.range.last, 0), counts

    def draw(self, seen: TransitionSnapshot, streams: Streams) -> Decisions:
        """Draw a batch."""
        settings, critics = self._settings, self._policy.body
        batch = seen.sample(streams, settings.batch, discount=settings.discount)
        now, then = (critics.inputs.rows(one) for one in (batch.observations, batch.next_observations))
        with torch.no_grad():
            follows = critics.see(then, None)[0], self._target.see(then, None)[0]
        return Decisions(
            critics.see(now, None)[0],
            self._policy.head.squashed(batch.actions),
            torch.from_numpy(batch.rewards),
            torch.from_numpy(batch.discounts),
            *follows,
            torch.full(batch.rewards.shape, 1.0 / settings.batch),
            batch,
        )

    def state(self) -> dict[str, Array]:
        """Return all that it remembers: nothing."""
        return {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""


class SoftChunks(ChunkSource):
    """Draws chunks of each agent from its own stream, with the memory that the actor had."""

    def __init__(self, block: LearnerBlock, settings: SacSettings, policy: SoftPolicy, target: Network) -> None:
        super().__init__("sac", block, settings, policy.body.state_width)
        self._settings, self._policy, self._target = settings, policy, target

    def draw(self, seen: SequenceSnapshot, streams: Streams) -> Decisions:
        """Draw chunks."""
        critics, burn = self._policy.body, self._settings.burn_in
        batch = self.sample(seen, streams)
        chunk = Chunk.of(critics, batch)
        rows = self._settings.chunk * self._count
        now = chunk.seen_by(critics, burn)
        with torch.no_grad():
            target = chunk.seen_by(self._target, burn)
        then = self.followed(batch)
        places = then.ahead[..., None]
        follows, follows_target = (
            one.gather(1, places.expand(-1, -1, one.shape[-1])) for one in (now.detach(), target)
        )
        return Decisions(
            now[:, :rows],
            self._policy.head.squashed(flat(batch.actions[:, :, burn:])),
            then.rewards,
            then.discounts,
            follows,
            follows_target,
            then.weights,
            batch,
        )
