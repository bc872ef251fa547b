"""Heads: what the outputs of a network mean as actions: how one is drawn, how likely it was, and the entropy."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stretto.core import ChoiceStreams
from stretto.errors import InvalidSpace
from stretto.policies.networks.branches import Branches, branches_of
from stretto.policies.networks.parameters import padded
from stretto.spaces import Array

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Scored(Protocol):
    """How likely actions were, and the entropy of what they were drawn from; both have the axes agents and rows."""

    likelihoods: Tensor  # their logarithms

    def entropies(self) -> Tensor: ...

    def pull(self, by_likelihood: Tensor, by_entropy: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradient with respect to outputs and scales, given those with respect to likelihoods and entropies."""


class Head(Protocol):
    """Outputs, actions and results have two leading axes, agents and rows.

    `width` is how many outputs a head needs, `scales` how many further parameters, which do not depend on what is seen. A
    head knows its own gradient: written out it takes a third of the time that automatic differentiation takes.
    """

    width: int
    scales: int

    def choose(self, outputs: Tensor, scales: Tensor, choices: ChoiceStreams | None, allowed: Array | None) -> Array:
        """Draw actions, or return the most likely ones where `choices` is `None`."""

    def bounded(self, drawn: Array) -> Array:
        """Return what is drawn as the world takes it."""

    def drawn(self, actions: Array) -> Array:
        """Return what would be drawn for the world to take these actions."""

    def score(self, outputs: Tensor, scales: Tensor, actions: Tensor, allowed: Tensor | None) -> Scored:
        """Return how likely actions were."""


def head_of(space: spaces.Space[Any]) -> Head:
    """Return the head for an action space."""
    if (branches := branches_of(space)) is not None:
        return Categorical(branches)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space)
    raise InvalidSpace(
        f"a network acts in Discrete, MultiDiscrete, MultiBinary or Box spaces of floats, got {space}; wrap the world, or "
        f"write a learner"
    )


class Categorical:
    """One choice, or several at a time, each among a number of actions."""

    scales = 0

    def __init__(self, branches: Branches) -> None:
        self._branches, self.width = branches, branches.width

    def _logarithms(self, outputs: Tensor, allowed: Any) -> list[Tensor]:
        """Return the logarithms of all probabilities, choice by choice."""
        return [torch.log_softmax(logits, -1) for logits in self._branches.ruled_out(outputs, allowed)]

    def choose(self, outputs: Tensor, scales: Tensor, choices: ChoiceStreams | None, allowed: Array | None) -> Array:
        logarithms = self._logarithms(outputs, allowed)
        numbers = None if choices is None else choices.uniform(len(logarithms))
        picked = []
        for k, (logarithm, size) in enumerate(zip(logarithms, self._branches.sizes, strict=True)):
            known = logarithm.numpy()[..., :size]
            if numbers is None:
                picked.append(known.argmax(-1))
                continue
            sums = np.exp(known.astype(np.float64)).cumsum(-1)
            number = numbers[..., k, None] * sums[..., -1:]
            picked.append((sums <= number).sum(-1))
        return self._branches.actions(np.stack(picked, -1))

    def bounded(self, drawn: Array) -> Array:
        return drawn

    def drawn(self, actions: Array) -> Array:
        return actions

    def score(self, outputs: Tensor, scales: Tensor, actions: Tensor, allowed: Tensor | None) -> Scored:
        return _ScoredChoices(self._logarithms(outputs, allowed), self._branches.picked(actions))


class _ScoredChoices:
    """Choices one beside the other: the logarithms of all probabilities of each, and what was chosen."""

    def __init__(self, logarithms: list[Tensor], chosen: Tensor) -> None:
        self._logarithms = logarithms
        self._chosen = [chosen] if len(logarithms) == 1 else torch.split(chosen, 1, -1)
        self.likelihoods = _total([one.gather(-1, k) for one, k in zip(logarithms, self._chosen, strict=True)])[..., 0]

    @cached_property
    def _probabilities(self) -> list[Tensor]:
        return [logarithm.exp() for logarithm in self._logarithms]

    @cached_property
    def _entropies(self) -> list[Tensor]:
        pairs = zip(self._probabilities, self._logarithms, strict=True)
        return [-(probability * logarithm).sum(-1, keepdim=True) for probability, logarithm in pairs]

    def entropies(self) -> Tensor:
        return _total(self._entropies)[..., 0]

    def pull(self, by_likelihood: Tensor, by_entropy: Tensor | None) -> tuple[Tensor, Tensor | None]:
        towards, found = by_likelihood[..., None], []
        for k, probability in enumerate(self._probabilities):
            gradient = probability * -towards
            gradient.scatter_add_(-1, self._chosen[k], towards)
            if by_entropy is not None:
                spread = self._logarithms[k] + self._entropies[k]
                gradient -= probability * spread * by_entropy[..., None]
            found.append(gradient)
        return found[0] if len(found) == 1 else torch.cat(found, -1), None


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class Gaussian:
    """Numbers around the outputs, with standard deviations that are parameters; -1 and 1 stand for finite bounds.

    What is drawn outside of the bounds is recorded as it is and clipped by `bounded`, so that its likelihood is right.
    """

    def __init__(self, space: spaces.Box) -> None:
        self._space = space
        self.count = int(np.prod(space.shape))
        self.width = self.scales = padded(self.count)
        finite = np.isfinite(space.low) & np.isfinite(space.high)
        self.half = np.where(finite, (space.high - space.low) / 2, 1.0)
        self.middle = np.where(finite, (space.high + space.low) / 2, 0.0)

    def choose(self, outputs: Tensor, scales: Tensor, choices: ChoiceStreams | None, allowed: Array | None) -> Array:
        means = outputs[..., : self.count].numpy().astype(np.float64)
        if choices is not None:
            deviations = np.exp(scales[..., : self.count].numpy().astype(np.float64))
            means = means + deviations[:, None] * choices.normal(self.count)
        return means.reshape(*means.shape[:-1], *self._space.shape).astype(np.float32)

    def bounded(self, drawn: Array) -> Array:
        scaled = (drawn * self.half + self.middle).astype(self._space.dtype)
        return np.clip(scaled, self._space.low, self._space.high)

    def drawn(self, actions: Array) -> Array:
        found: Array = ((actions - self.middle) / self.half).astype(np.float32)
        return found

    def score(self, outputs: Tensor, scales: Tensor, actions: Tensor, allowed: Tensor | None) -> Scored:
        return _ScoredNumbers(outputs, scales, actions.reshape(*outputs.shape[:-1], -1))


class _ScoredNumbers:
    """Numbers around means: how many standard deviations each is away."""

    def __init__(self, outputs: Tensor, scales: Tensor, actions: Tensor) -> None:
        self._count, self._width = actions.shape[-1], outputs.shape[-1]
        self._deviations = scales[:, None, : self._count]
        self._shrink = torch.exp(-self._deviations)
        self._away = (actions - outputs[..., : self._count]) * self._shrink
        each = -0.5 * self._away * self._away - self._deviations - _HALF_LOG_TAU
        self.likelihoods = each.sum(-1)

    def entropies(self) -> Tensor:
        entropy = (self._deviations + (0.5 + _HALF_LOG_TAU)).sum(-1)
        return entropy.expand(self.likelihoods.shape)

    def pull(self, by_likelihood: Tensor, by_entropy: Tensor | None) -> tuple[Tensor, Tensor | None]:
        towards = by_likelihood[..., None]
        by_outputs = torch.zeros(*by_likelihood.shape, self._width, device=by_likelihood.device)
        by_outputs[..., : self._count] = towards * self._away * self._shrink
        by_scales = (towards * (self._away * self._away - 1.0)).sum(1)
        if by_entropy is not None:
            by_scales = by_scales + by_entropy.sum(1)[:, None]
        return by_outputs, torch.nn.functional.pad(by_scales, (0, self._width - self._count))
