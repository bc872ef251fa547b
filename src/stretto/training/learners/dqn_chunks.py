"""What DQN learns from if its networks have a memory: chunks of sequences, with the memory that the actor had."""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.errors import UsageError
from stretto.policies.networks.values import ActionValues
from stretto.spaces import Array
from stretto.storage import SequenceSnapshot
from stretto.training.learners.base import LearnerBlock
from stretto.training.learners.chunk import Chunk, ChunkSource, flat
from stretto.training.learners.dqn_settings import DqnSettings
from stretto.training.learners.judged import Judged, Streams, draw_shares
from stretto.training.learners.targets import TargetNetwork


class Chunks(ChunkSource):
    """Draws chunks and judges what was done in them."""

    def __init__(self, block: LearnerBlock, settings: DqnSettings, values: ActionValues, target: TargetNetwork) -> None:
        super().__init__("dqn", block, settings, values.network.state_width)
        self._settings, self._values, self._target = settings, values, target
        if settings.priority_exponent is not None:
            raise UsageError(
                f"dqn with a memory draws all chunks equally often, got priority_exponent={settings.priority_exponent}; "
                f"leave it out"
            )

    def judge(self, seen: SequenceSnapshot, streams: Streams, progress: float) -> Judged:
        """Draw chunks and judge what was done in them."""
        settings, values, burn = self._settings, self._values, self._settings.burn_in
        batch = self.sample(seen, streams)
        chunk = Chunk.of(values.network, batch)
        rows = settings.chunk * self._count
        shares = draw_shares(streams, rows, settings.quantiles)
        next_shares = draw_shares(streams, rows + self._count, settings.quantiles)
        now = chunk.seen_by(values.network, burn)
        with torch.no_grad():
            next_seen = chunk.seen_by(self._target.network, burn)
            online = now.detach() if settings.double else None
            worth = self._target.ahead(next_seen, online, chunk.allowed(burn), next_shares)
        then = self.followed(batch, settings.n_steps)
        worth = worth.gather(1, then.ahead[..., None].expand(-1, -1, worth.shape[-1]))
        targets = then.rewards[..., None] + then.discounts[..., None] * worth
        chosen = values.branches.picked(torch.from_numpy(flat(batch.actions[:, :, burn:])))
        taken = values.of(values(now[:, :rows], shares), chosen)
        return Judged(taken, targets, shares, then.weights, batch)

    def learned(self, judged: Judged, errors: Tensor, moving: Array) -> None:
        """Take note of how large errors were: all chunks stay equally likely."""
