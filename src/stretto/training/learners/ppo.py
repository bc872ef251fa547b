"""PPO: proximal policy optimization with a clipped objective, for a block of independent agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stretto.errors import UsageError
from stretto.policies.networks.heads import Gaussian
from stretto.spaces import Array
from stretto.storage.segments import SegmentLayout, SegmentSnapshot
from stretto.training.advantages import advantages
from stretto.training.learners.base import LearnerBlock, Metrics, Remembers
from stretto.training.learners.ppo_objective import DIVERGENCE, FIGURES, ClippedObjective, Experience, minibatches
from stretto.training.learners.ppo_settings import PpoSettings
from stretto.training.learners.segment_rows import by_agent, rows_seen
from stretto.training.learners.stacked import StackedLearner, actors_of
from stretto.training.rewards import RewardScale
from stretto.training.sequences import Remembered, Sequences


class Ppo(StackedLearner):
    """Learns an actor and a critic for each agent, from segments."""

    def __init__(self, block: LearnerBlock, settings: PpoSettings) -> None:
        self._block, self._settings = block, settings
        self.policy, self._optimizer = actors_of(block, settings)
        self._network, self._head = self.policy.network, self.policy.head
        super().__init__(block, self.policy, "batches")
        scales = RewardScale(block.lanes, len(block.agents), settings.discount)
        self._rewards = scales if settings.normalize_rewards else None
        self._drawn = isinstance(self._head, Gaussian)
        shape: Any = block.action_space.shape
        extras = {"drawn": (shape, np.float32)} if self._drawn else {}
        self.policy.says_likelihood = block.stale
        if block.stale:
            extras["likelihood"] = (), np.float32
        if self._network.memory is not None:
            extras["memory"] = (self._network.state_width,), np.float32
            if settings.rows % settings.sequence or settings.batch % settings.sequence:
                raise UsageError(
                    f"with a memory, rows and batch must be multiples of sequence, got rows={settings.rows}, "
                    f"batch={settings.batch} and sequence={settings.sequence}; choose others"
                )
        self.layout = SegmentLayout(block.storage(extras), settings.rows)

    @staticmethod
    def rows_learned(settings: PpoSettings, steps: int) -> int:
        """Return how many rows each agent learns from in so many steps of the environment."""
        return steps * settings.epochs

    def learn(self, seen: SegmentSnapshot, progress: float, learning: Array | None = None) -> list[Metrics]:
        """Learn from a segment."""
        self._check.begin()
        learning = np.ones(len(self._block.agents), np.bool_) if learning is None else learning
        settings, network = self._settings, self._network
        agents, count = len(self._block.agents), seen.acted.shape[0] * seen.acted.shape[1]
        whole, sequences = self._sequences(seen)
        acted = sequences.acted
        rows, allowed = rows_seen(self._block, self._network.inputs, seen)
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(rows[:, :count], acted & learning[:, None])
            rows = self.policy.normalizer(rows)
        device = network.device
        rows, allowed = rows.to(device), None if allowed is None else allowed.to(device)
        actions = torch.from_numpy(by_agent(seen.extras["drawn"] if self._drawn else seen.actions)).to(device)
        with torch.no_grad():
            outputs = network(rows) if whole is None else network.towers(whole.to(device).seen(network, rows))
            scored = self._head.score(outputs[:, 0, :count], network.scales, actions, allowed)
        values = outputs[:, 1, :, 0].reshape(agents, -1, self._block.lanes).permute(1, 2, 0).cpu().numpy()
        rewards = seen.rewards
        if self._rewards is not None:
            rewards = self._rewards(rewards, seen.terminated | seen.truncated, seen.acted, learning)
        outcome = rewards, seen.acted, seen.terminated, seen.truncated
        shares = None
        if self._block.stale:
            now = scored.likelihoods.reshape(agents, -1, self._block.lanes).permute(1, 2, 0).cpu().numpy()
            shares = np.exp(np.minimum(now - seen.extras["likelihood"], 0.0))
        gained = advantages(values, *outcome, settings.discount, settings.smoothing, shares)
        expected = values[:-1]
        known = [torch.from_numpy(by_agent(array)).to(device) for array in (gained, expected + gained, expected)]
        experience = Experience(rows, actions, allowed, scored.likelihoods, *known)
        return self._epochs(experience, sequences, learning.copy(), progress)

    def _sequences(self, seen: SegmentSnapshot) -> tuple[Remembered | None, Sequences]:
        """Return what is remembered beside the whole segment, and the sequences to learn from."""
        acted = np.moveaxis(seen.acted, 2, 0)
        if self._network.memory is None:
            return None, Sequences(acted)
        memory = np.moveaxis(seen.extras["memory"], 2, 0)
        return Sequences(acted, acted.shape[1], memory).whole(), Sequences(acted, self._settings.sequence, memory)

    def _epochs(self, experience: Experience, sequences: Sequences, moving: Array, progress: float) -> list[Metrics]:
        settings, agents = self._settings, len(self._block.agents)
        rates = [settings.learning_rate.at(progress)] * agents
        objective = ClippedObjective(self._network, self._head, settings, settings.entropy.at(progress))
        figures = _Means(agents)
        for epoch in range(settings.epochs):
            looks = settings.most_divergence is not None or epoch == settings.epochs - 1
            streams = [stream if moves else None for stream, moves in zip(self._streams, moving, strict=True)]
            for batch, there in minibatches(streams, sequences, experience, settings.batch):
                found = objective.differentiate(batch, figures=looks)
                norms = self._optimizer.norms().cpu().numpy()
                learning = self._check.passed(np.isfinite(norms), moving & there, self._optimizer.steps, batch)
                moving &= ~self._check.stopped
                self._optimizer.step(rates, norms, learning)
                if found is None:
                    continue
                figures.add(found.cpu().numpy(), norms, learning)
                if settings.most_divergence is not None:
                    moving &= (found[DIVERGENCE] <= 1.5 * settings.most_divergence).cpu().numpy()
        return self._metrics(figures.means, experience, sequences.acted)

    def _metrics(self, means: Array, experience: Experience, acted: Array) -> list[Metrics]:
        names = (*FIGURES, "gradient")
        found: list[Metrics] = [dict(zip(names, column.tolist(), strict=True)) for column in means.T]
        for agent, mine in enumerate(acted):
            returns, values = (
                one[agent].cpu().double().numpy()[mine] for one in (experience.returns, experience.values)
            )
            spread = returns.var() if len(returns) else 0.0
            found[agent]["updates"] = float(self._optimizer.steps[agent])
            found[agent]["explained_variance"] = float(1 - (returns - values).var() / spread) if spread else 0.0
        return found

    def _parts(self) -> dict[str, Remembers | None]:
        return {
            "network": self._network.parameters,
            "optimizer": self._optimizer,
            "observations": self.policy.normalizer,
            "rewards": self._rewards,
        }


class _Means:
    """Means of figures over the updates in which each agent learned."""

    def __init__(self, agents: int) -> None:
        self._sums, self._counts = np.zeros((len(FIGURES) + 1, agents)), np.zeros(agents)

    def add(self, figures: Array, norms: Array, learning: Array) -> None:
        self._sums[:, learning] += np.concatenate([figures, norms[None]])[:, learning]
        self._counts += learning

    @property
    def means(self) -> Array:
        return self._sums / np.maximum(self._counts, 1)
