"""SAC: soft actor-critic, for a block of independent agents whose actions are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.policies.networks.parameters import Parameters
from stretto.policies.networks.soft_actors import SoftPolicy, critics_of
from stretto.spaces import Array
from stretto.training.learners.base import LearnerBlock, Remembers
from stretto.training.learners.judged import Streams
from stretto.training.learners.replaying import ReplayLearner
from stretto.training.learners.sac_experience import Decisions, SoftChunks, SoftTransitions
from stretto.training.learners.sac_settings import SacSettings
from stretto.training.learners.targets import Follower
from stretto.training.optimizer import Adam


class Sac(ReplayLearner):
    """Learns an actor, two critics and a temperature for each agent.

    The critics learn what is seen: convolutions, memory and shared layers are theirs, and the actor takes them as they are.
    """

    figures = "critic_loss", "actor_loss", "value", "entropy", "temperature", "gradient"

    def __init__(self, block: LearnerBlock, settings: SacSettings) -> None:
        self._settings = settings
        trees = [tree.child("network") for tree in block.trees]
        self.policy = SoftPolicy.new(block.world, trees, settings.network)
        self.policy.begun[:] = False
        self._critics, self._head = self.policy.body, self.policy.head
        target = critics_of(trees, block.world, settings.network)
        self._follower = Follower(self._critics, target, 1, settings.target_average)
        self._target = target
        self._temperature = Parameters(len(trees), 1, {"logarithm": (1,)})
        self._temperature.flat[:, 0] = float(np.log(settings.temperature))
        entropy = settings.target_entropy
        self._target_entropy = float(-self._head.count if entropy is None else entropy)
        self._critic_optimizer, actor, self._temperature_optimizer = (
            Adam(one, epsilon=1e-8, most_gradient=most)
            for one, most in (
                (self._critics.parameters, settings.most_gradient),
                (self.policy.network.parameters, settings.most_gradient),
                (self._temperature, None),
            )
        )
        source = SoftTransitions if settings.network.memory is None else SoftChunks
        self._experience: SoftTransitions | SoftChunks = source(block, settings, self.policy, target)
        super().__init__(block, self.policy, settings, actor, self._experience)

    def _explore(self, progress: float, decided: Array) -> None:
        self.policy.begun |= decided >= self._settings.learning_starts

    def _update(self, seen: Any, streams: Streams, moving: Array, progress: float) -> Tensor:
        """Do one update of critics, actor and temperature; return figures by agent."""
        drawn = self._experience.draw(seen, streams)
        rates = [self._settings.learning_rate.at(progress)] * len(moving)
        counted = (drawn.weights > 0).any(1).numpy()
        worth = torch.exp(self._temperature.flat[:, :1])
        critic_loss, values, norms = self._criticize(drawn, streams, worth)
        moving &= self._passed(norms, critic_loss, moving, drawn)
        self._critic_optimizer.step(rates, norms.numpy(), moving & counted)
        actor_loss, entropies, actor_norms = self._act(drawn, streams, worth)
        moving &= self._passed(actor_norms, actor_loss, moving, drawn)
        learning = moving & counted
        self._optimizer.step(rates, actor_norms.numpy(), learning)
        if self._settings.tune_temperature:
            self._temperature.gradient[:, 0] = temperature_gradient(entropies, self._target_entropy)
            self._temperature_optimizer.step(rates, np.zeros(len(moving)), learning)
        self._follower.follow(learning)
        return torch.stack([critic_loss, actor_loss, values, entropies, worth[:, 0], norms])

    def _passed(self, norms: Tensor, losses: Tensor, moving: Array, drawn: Decisions) -> Array:
        finite = (norms.isfinite() & losses.isfinite()).numpy()
        return self._check.passed(finite, moving, self._optimizer.steps, drawn.batch)

    def _criticize(self, drawn: Decisions, streams: Streams, worth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write the critics' gradient; return the loss, the mean value and the norm of the gradient, by agent."""
        critics, weights = self._critics, drawn.weights
        with torch.no_grad():
            outputs = self.policy.network.tower(self.policy.sees(drawn.follows), 0)
            next_ones = self._head.draw(outputs, self._noise(streams, outputs))
            judged = self._target.towers(self._target.joined(next_ones.numbers, drawn.follows_target))[..., 0]
            targets = soft_targets(drawn.rewards, drawn.discounts, judged, worth * next_ones.likelihoods)
        going = critics.go_through(critics.joined(drawn.actions, drawn.seen))
        values = going.outputs[..., 0]
        away = values - targets[:, None]
        slopes = torch.zeros_like(going.outputs)
        slopes[..., 0] = torch.where(weights[:, None] > 0, away * weights[:, None], 0.0)
        going.back(slopes)
        losses = torch.where(weights > 0, 0.5 * (away * away).sum(1) * weights, 0.0).sum(1)
        means = torch.where(weights > 0, values.mean(1) * weights, 0.0).sum(1)
        return losses, means, self._critic_optimizer.norms()

    def _act(self, drawn: Decisions, streams: Streams, worth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write the actor's gradient; return the loss, the mean entropy and the norm of the gradient, by agent."""
        critics, weights, seen = self._critics, drawn.weights, drawn.seen.detach()
        going = self.policy.network.go_through(self.policy.sees(seen))
        ours = self._head.draw(going.outputs[:, 0], self._noise(streams, going.outputs[:, 0]))
        judging = critics.go_through(critics.joined(ours.numbers, seen))
        values = judging.outputs[..., 0]
        least, which = values.min(1)
        slopes = torch.zeros_like(judging.outputs)
        slopes[..., 0].scatter_(1, which[:, None], -weights[:, None])
        by_numbers = judging.pull(slopes)[..., : self._head.count]
        going.back(ours.pull(by_numbers, worth * weights)[:, None])
        counted = weights > 0
        losses = torch.where(counted, (worth * ours.likelihoods - least) * weights, 0.0).sum(1)
        entropies = -torch.where(counted, ours.likelihoods * weights, 0.0).sum(1)
        return losses, entropies, self._optimizer.norms()

    def _noise(self, streams: Streams, outputs: Tensor) -> Tensor:
        shape = outputs.shape[1], self._head.count
        return torch.from_numpy(np.stack([stream.standard_normal(shape, np.float32) for stream in streams]))

    def acting(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of a `state` a policy acts by."""
        width = self._critics.parameters.flat_shared.shape[1]
        body = {"body": state["critics"]["weights"][:, :width]} if width else {}
        return {"actor": state["actor"]["weights"], "begun": state["begun"], **body}

    def weights(self) -> list[list[Array]]:
        """Return what each agent acts by: its actor, and what that sees through."""
        both = self.policy.network.parameters.flat, self._critics.parameters.flat_shared
        return [[actor.numpy(), shared.numpy()] for actor, shared in zip(*both, strict=True)]

    def load_policy(self, state: Mapping[str, Array]) -> None:
        """Begin with a policy that was learned before; critics know nothing yet of what actions are worth."""
        super().load_policy(state)
        self._follower.begin()

    def state(self) -> dict[str, Any]:
        """Return all that it needs to go on as if nothing had happened."""
        return {**super().state(), "begun": self.policy.begun}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
        super().load_state(state)
        self.policy.begun[:] = state["begun"]

    def _parts(self) -> dict[str, Remembers]:
        """Return all that remembers something, by name."""
        return {
            "actor": self.policy.network.parameters,
            "critics": self._critics.parameters,
            "target": self._follower,
            "temperature": self._temperature,
            "actor optimizer": self._optimizer,
            "critic optimizer": self._critic_optimizer,
            "temperature optimizer": self._temperature_optimizer,
            "experience": self._experience,
        }


def soft_targets(rewards: Tensor, discounts: Tensor, values: Tensor, cost: Tensor) -> Tensor:
    """Return what decisions are worth: the reward, and the lesser of the critics' `values` after it without the `cost`.

    `values` are (agents, critics, rows), all others (agents, rows). The cost is the temperature times the likelihood.
    """
    return rewards + discounts * (values.min(1).values - cost)


def temperature_gradient(entropies: Tensor, target: float) -> Tensor:
    """Return the gradient of the temperature's logarithm: entropy that is missing makes it dearer."""
    return entropies - target
