"""Squashed numbers: what is drawn around means is squashed into the bounds of a space, and how likely it was is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stretto.core import ChoiceStreams
from stretto.errors import InvalidSpace
from stretto.policies.networks.parameters import padded
from stretto.spaces import Array

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_LEAST, _MOST = -20.0, 2.0
"""The logarithms of standard deviations lie between these."""


class Squashed:
    """The outputs of a network as means and logarithms of standard deviations, and the tanh of what is drawn around them.

    Networks deal with numbers from -1 to 1, which stand for the bounds of the space. `width` is how many outputs are needed;
    deviations begin in the middle of it.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        is_box = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
        if not is_box or not np.isfinite([space.low, space.high]).all():  # type: ignore[attr-defined]
            raise InvalidSpace(
                f"sac acts in Box spaces of floats with finite bounds, got {space}; use ppo, or wrap the world so that its "
                f"actions have bounds"
            )
        assert isinstance(space, spaces.Box)
        self._space = space
        self.count = int(np.prod(space.shape))
        self._padded = padded(self.count)
        self.width = 2 * self._padded
        self.half = ((space.high.astype(np.float64) - space.low) / 2).reshape(-1)
        self.middle = ((space.high.astype(np.float64) + space.low) / 2).reshape(-1)

    def choose(self, outputs: Tensor, choices: ChoiceStreams | None) -> Array:
        """Draw numbers from -1 to 1, (agents, rows, count), or return those in the middle where `choices` is `None`."""
        means = outputs[..., : self.count].numpy().astype(np.float64)
        if choices is not None:
            logarithms = outputs[..., self._padded : self._padded + self.count].numpy().astype(np.float64)
            means = means + np.exp(np.clip(logarithms, _LEAST, _MOST)) * choices.normal(self.count)
        squashed: Array = np.tanh(means)
        return squashed

    def anything(self, choices: ChoiceStreams) -> Array:
        """Draw any numbers from -1 to 1, all equally likely."""
        return 2.0 * choices.uniform(self.count, 1) - 1.0

    def bounded(self, squashed: Array) -> Array:
        """Return numbers from -1 to 1 as actions of the space."""
        scaled = (squashed * self.half + self.middle).reshape(*squashed.shape[:-1], *self._space.shape)
        actions: Array = np.clip(scaled.astype(self._space.dtype), self._space.low, self._space.high)
        return actions

    def squashed(self, actions: Array) -> Tensor:
        """Return actions of the space as numbers from -1 to 1: (agents, rows, count)."""
        flat = actions.reshape(*actions.shape[: actions.ndim - len(self._space.shape)], -1)
        away = (flat - self.middle) / np.where(self.half > 0, self.half, 1.0)
        return torch.from_numpy(np.clip(away, -1.0, 1.0).astype(np.float32))

    def draw(self, outputs: Tensor, noise: Tensor) -> Drawn:
        """Draw numbers given standard normal `noise`, (agents, rows, count)."""
        return Drawn(outputs, noise, self.count)


class Drawn:
    """Numbers that were drawn: `numbers` from -1 to 1, (agents, rows, count), and how likely they were.

    `likelihoods` are logarithms of densities of these numbers, not of the actions that they stand for.
    """

    def __init__(self, outputs: Tensor, noise: Tensor, count: int) -> None:
        half = outputs.shape[-1] // 2
        self._count, self._half = count, half
        # Elementwise functions take what is padded: then an agent's numbers do not depend on how many agents there are.
        noise = torch.nn.functional.pad(noise, (0, half - count))
        logarithms = outputs[..., half:]
        self._within = (logarithms > _LEAST) & (logarithms < _MOST)
        deviations = logarithms.clamp(_LEAST, _MOST)
        self._away = torch.exp(deviations) * noise
        drawn = outputs[..., :half] + self._away
        self._numbers = torch.tanh(drawn)
        self.numbers = self._numbers[..., :count]
        # log(1 - tanh(x)^2), in a form that loses nothing where tanh is all but 1.
        steepness = 2.0 * (math.log(2.0) - drawn - torch.nn.functional.softplus(-2.0 * drawn))
        each = -0.5 * noise * noise - deviations - _HALF_LOG_TAU - steepness
        self.likelihoods = each[..., :count].sum(-1)

    def pull(self, by_numbers: Tensor, by_likelihoods: Tensor) -> Tensor:
        """Return the gradient of outputs, given those of numbers and of likelihoods. The noise stays what it is."""
        count = self._count
        numbers, away = self.numbers, self._away[..., :count]
        by_drawn = by_numbers * (1.0 - numbers * numbers) + 2.0 * numbers * by_likelihoods[..., None]
        found = torch.zeros(*numbers.shape[:-1], 2 * self._half)
        found[..., :count] = by_drawn
        by_deviations = by_drawn * away - by_likelihoods[..., None]
        found[..., self._half : self._half + count] = torch.where(self._within[..., :count], by_deviations, 0.0)
        return found
