"""What DQN learns from if its networks have no memory: single transitions, drawn again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.policies.networks.values import ActionValues
from stretto.spaces import Array
from stretto.storage import Priorities, TransitionLayout, TransitionSnapshot
from stretto.training.learners.base import LearnerBlock
from stretto.training.learners.dqn_settings import DqnSettings
from stretto.training.learners.judged import Judged, Streams, draw_shares
from stretto.training.learners.targets import TargetNetwork


class Transitions:
    """Draws transitions of each agent from its own stream, uniformly or by priority, and judges them."""

    def __init__(self, block: LearnerBlock, settings: DqnSettings, values: ActionValues, target: TargetNetwork) -> None:
        self._settings, self._values, self._target = settings, values, target
        self.layout = TransitionLayout(block.storage(), settings.buffer, settings.rows)
        exponent = settings.priority_exponent
        self._priorities = None if exponent is None else Priorities(self.layout.ring, exponent)

    def follow(self, seen: TransitionSnapshot) -> tuple[Array, Array]:
        """Take note of what is new; return how many decisions each agent has made so far, and how many are there."""
        if self._priorities is not None:
            self._priorities.follow(seen.range)
        counts = np.array(seen.range.counts)
        return np.where(counts > 0, seen.range.last, 0), counts

    def judge(self, seen: TransitionSnapshot, streams: Streams, progress: float) -> Judged:
        """Draw a batch and judge it."""
        settings, values, inputs = self._settings, self._values, self._values.network.inputs
        ahead: Any = {"n_steps": settings.n_steps, "discount": settings.discount}
        if self._priorities is None:
            batch = seen.sample(streams, settings.batch, **ahead)
            weights = torch.ones(len(streams), settings.batch)
        else:
            ahead["correction"] = settings.priority_correction.at(progress)
            batch = seen.sample_prioritized(streams, settings.batch, self._priorities, **ahead)
            assert batch.weights is not None
            weights = torch.from_numpy(batch.weights)
        shares, next_shares = (draw_shares(streams, settings.batch, settings.quantiles) for _ in range(2))
        follows, allowed = inputs.rows(batch.next_observations), inputs.allowed(batch.next_observations)
        with torch.no_grad():
            next_seen = self._target.network.see(follows, None)[0]
            online = values.network.see(follows, None)[0] if settings.double else None
            worth = self._target.ahead(next_seen, online, allowed, next_shares)
        targets = torch.from_numpy(batch.rewards)[..., None] + torch.from_numpy(batch.discounts)[..., None] * worth
        chosen = values.branches.picked(torch.from_numpy(batch.actions))
        now = values.network.see(inputs.rows(batch.observations), None)[0]
        return Judged(values.of(values(now, shares), chosen), targets, shares, weights / settings.batch, batch)

    def learned(self, judged: Judged, errors: Tensor, moving: Array) -> None:
        """Take note of how large errors were."""
        if self._priorities is not None:
            self._priorities.set(np.where(moving[:, None], judged.batch.numbers, -1), errors.numpy())

    def state(self) -> dict[str, Any]:
        """Return all that it remembers."""
        return {} if self._priorities is None else self._priorities.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
        if self._priorities is not None:
            self._priorities.load_state(state)
