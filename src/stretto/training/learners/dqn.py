"""DQN: learns what actions are worth from replayed transitions, for a block of independent agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stretto.policies.networks.values import ActionValues, ValuePolicy, ValueSettings
from stretto.spaces import Array
from stretto.training.learners.base import LearnerBlock, Metrics, Remembers
from stretto.training.learners.dqn_chunks import Chunks
from stretto.training.learners.dqn_settings import DqnSettings
from stretto.training.learners.dqn_transitions import Transitions
from stretto.training.learners.judged import Streams
from stretto.training.learners.replaying import ReplayLearner
from stretto.training.learners.targets import TargetNetwork
from stretto.training.losses import value_loss
from stretto.training.optimizer import Adam


class Dqn(ReplayLearner):
    """Learns the values of actions for each agent, from its own transitions, or from chunks if networks remember."""

    figures = "loss", "value", "error", "gradient"

    def __init__(self, block: LearnerBlock, settings: DqnSettings) -> None:
        self._settings = settings
        shape = ValueSettings(settings.network, settings.dueling, settings.quantiles)
        trees = [tree.child("network") for tree in block.trees]
        self._values, target = (
            ActionValues(trees, block.observation_space, block.action_space, shape) for _ in range(2)
        )
        self._target = TargetNetwork(self._values, target, settings.target_interval, settings.target_average)
        optimizer = Adam(self._values.network.parameters, most_gradient=settings.most_gradient)
        self.policy: ValuePolicy = ValuePolicy(block.world, self._values, settings.epsilon.at(0.0))
        source = Transitions if settings.network.memory is None else Chunks
        self._experience: Transitions | Chunks = source(block, settings, self._values, self._target)
        super().__init__(block, self.policy, settings, optimizer, self._experience)

    def _explore(self, progress: float, decided: Array) -> None:
        self.policy.epsilon = self._settings.epsilon.at(progress)

    def _update(self, seen: Any, streams: Streams, moving: Array, progress: float) -> Tensor:
        """Do one update; return figures by agent: loss, mean value, mean error, norm of the gradient."""
        judged = self._experience.judge(seen, streams, progress)
        rate = self._settings.learning_rate.at(progress)
        taken, weights = judged.taken, judged.weights
        losses, errors, slopes = value_loss(taken, judged.targets, judged.shares, self._settings.huber)
        self._values.network.parameters.differentiate([taken], [slopes * weights[..., None, None]])
        norms, counted = self._optimizer.norms(), weights > 0
        losses = torch.where(counted, losses * weights, 0.0).sum(1)
        # A gradient may be finite where the loss is not: Huber's is at most 1.
        finite = (norms.isfinite() & losses.isfinite()).numpy()
        moving &= self._check.passed(finite, moving, self._optimizer.steps, judged.batch)
        learning = moving & counted.any(1).numpy()
        self._optimizer.step([rate] * len(moving), norms.numpy(), learning)
        self._target.follow(learning)
        self._experience.learned(judged, errors, moving)
        shares = counted / counted.sum(1, keepdim=True).clamp(min=1)
        means = taken.detach().mean((2, 3))
        return torch.stack([losses, (means * shares).sum(1), (errors * shares).sum(1), norms])

    def _of_agent(self, updates: float, buffer: float) -> Metrics:
        return {"updates": updates, "epsilon": self.policy.epsilon, "buffer": buffer}

    def acting(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of a `state` a policy acts by."""
        return {**super().acting(state), "epsilon": state["epsilon"]}

    def load_policy(self, state: Mapping[str, Array]) -> None:
        """Begin with the weights of a policy that was learned before."""
        super().load_policy(state)
        self._target.begin()

    def state(self) -> dict[str, Any]:
        """Return all that it needs to go on as if nothing had happened."""
        return {**super().state(), "epsilon": self.policy.epsilon}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
        super().load_state(state)
        self.policy.epsilon = float(state["epsilon"])

    def _parts(self) -> dict[str, Remembers]:
        """Return all that remembers something, by name."""
        return {
            "network": self._values.network.parameters,
            "target": self._target,
            "optimizer": self._optimizer,
            "experience": self._experience,
        }
