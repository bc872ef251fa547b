"""Behaviour cloning: an agent learns to do what was done in recorded episodes, for a block of independent agents."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stretto.errors import UsageError
from stretto.spaces import Array
from stretto.storage.segments import SegmentLayout, SegmentSnapshot
from stretto.training.learners.base import LearnerBlock, Metrics, Remembers
from stretto.training.learners.bc_settings import BcSettings
from stretto.training.learners.ppo_objective import Batch, Experience, minibatches
from stretto.training.learners.segment_rows import by_agent, rows_seen
from stretto.training.learners.stacked import StackedLearner, actors_of
from stretto.training.sequences import Sequences


class Cloning(StackedLearner):
    """Makes what was done more likely, batch by batch: the mean of the logarithms of probabilities grows."""

    def __init__(self, block: LearnerBlock, settings: BcSettings) -> None:
        if settings.network.memory is not None:
            raise UsageError(
                f"recorded episodes do not say what an agent remembered, got network.memory={settings.network.memory} with "
                f"bc; leave it out"
            )
        self._block, self._settings = block, settings
        self.policy, self._optimizer = actors_of(block, settings)
        self._network, self._head = self.policy.network, self.policy.head
        super().__init__(block, self.policy, "batches")
        self.layout = SegmentLayout(block.storage(), settings.rows)

    @staticmethod
    def rows_learned(_: BcSettings, steps: int) -> int:
        """Return how many rows each agent learns from in so many recorded steps."""
        return steps

    def learn(self, seen: SegmentSnapshot, progress: float, learning: Array | None = None) -> list[Metrics]:
        """Learn from a segment of recorded episodes."""
        self._check.begin()
        agents, count = len(self._block.agents), seen.acted.shape[0] * seen.acted.shape[1]
        moving = np.ones(agents, np.bool_) if learning is None else learning.copy()
        sequences = Sequences(np.moveaxis(seen.acted, 2, 0))
        rows, allowed = rows_seen(self._block, self._network.inputs, seen)
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(rows[:, :count], sequences.acted & moving[:, None])
            rows = self.policy.normalizer(rows)
        done = self._head.drawn(by_agent(seen.actions))
        nothing = torch.zeros(agents, count)
        experience = Experience(rows, torch.from_numpy(done), allowed, nothing, nothing, nothing, nothing)
        rates, sums, counts = (
            [self._settings.learning_rate.at(progress)] * agents,
            np.zeros((2, agents)),
            np.zeros(agents),
        )
        streams = [stream if moves else None for stream, moves in zip(self._streams, moving, strict=True)]
        for batch, there in minibatches(streams, sequences, experience, self._settings.batch):
            losses, norms = self._differentiate(batch).numpy(), self._optimizer.norms().numpy()
            taking = self._check.passed(
                np.isfinite(norms) & np.isfinite(losses), moving & there, self._optimizer.steps, batch
            )
            moving &= ~self._check.stopped
            self._optimizer.step(rates, norms, taking)
            sums[:, taking] += np.stack([losses, norms])[:, taking]
            counts += taking
        means = sums / np.maximum(counts, 1)
        updates = self._optimizer.steps
        return [
            {"loss": float(loss), "gradient": float(norm), "updates": float(updates[agent])}
            for agent, (loss, norm) in enumerate(means.T)
        ]

    def _differentiate(self, batch: Batch) -> Tensor:
        """Write the gradient of a batch; return the loss of each agent."""
        known, weights, network = batch.experience, batch.weights, self._network
        going = network.go_through(network.see(known.rows, None)[0])
        with torch.no_grad():
            scored = self._head.score(going.outputs[:, 0], network.scales, known.actions, known.allowed)
            by_outputs, by_scales = scored.pull(-weights, None)
            gradient = torch.zeros_like(going.outputs)
            gradient[:, 0, :, : by_outputs.shape[-1]] = by_outputs
            going.back(gradient, by_scales)
            return -(scored.likelihoods * weights).sum(1)

    def _parts(self) -> dict[str, Remembers | None]:
        return {
            "network": self._network.parameters,
            "optimizer": self._optimizer,
            "observations": self.policy.normalizer,
        }
