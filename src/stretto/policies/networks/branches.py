"""Branches: the outputs of a network, one for each action, for spaces of one or several choices among a number of actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stretto.policies.networks.parameters import padded
from stretto.spaces import Array

UNLIKELY = -1e9
"""Added to the output of an action that does not exist or is not allowed. It is never chosen, and nothing becomes NaN."""


class Branches:
    """A branch is one choice among a number of actions. A Discrete space has one, a MultiDiscrete space several.

    Each branch has consecutive outputs, padded to a multiple of 8; `width` is how many there are in all. Outputs have two
    leading axes, agents and rows.
    """

    def __init__(self, space: spaces.Space[Any], sizes: Array, starts: Array) -> None:
        self.sizes: list[int] = sizes.tolist()
        self._shape: tuple[int, ...] = space.shape or ()
        self.starts, self._dtype = starts, space.dtype
        self._begins_elsewhere = bool(starts.any())
        self._spans: list[tuple[int, int, Tensor | None]] = []  # begin and end, and what rules out those not there
        self.averages: list[Tensor] = []
        """What the outputs of each branch are multiplied with before their sum, to give the average over its actions."""
        self.width = 0
        for size in self.sizes:
            begin, self.width = self.width, self.width + padded(size)
            missing = torch.zeros(padded(size))
            missing[size:] = UNLIKELY
            self._spans.append((begin, self.width, missing if size < padded(size) else None))
            self.averages.append((missing == 0) / size)

    def __len__(self) -> int:
        return len(self.sizes)

    def split(self, outputs: Tensor) -> list[Tensor]:
        """Return the outputs of each branch, padded."""
        return [outputs[..., begin:end] for begin, end, _ in self._spans]

    def ruled_out(self, outputs: Tensor, allowed: Any) -> list[Tensor]:
        """Return the outputs of each branch, with those of actions that cannot be chosen made `UNLIKELY`.

        `allowed` has an entry for each action, or is `None`. Where it allows none, as for agents that cannot act, all are.
        """
        found, first = [], 0
        for (begin, end, missing), size in zip(self._spans, self.sizes, strict=True):
            mine = outputs[..., begin:end]
            if missing is not None:
                mine = mine + missing.to(mine.device)
            if allowed is not None:
                some = torch.as_tensor(allowed[..., first : first + size])
                away = torch.zeros_like(mine)
                away[..., :size] = torch.where(some | ~some.any(-1, keepdim=True), 0.0, UNLIKELY)
                mine = mine + away
            found.append(mine)
            first += size
        return found

    def actions(self, picked: Array) -> Array:
        """Return what was picked in each branch (last axis) as actions of the space."""
        actions = picked + self.starts
        return actions.reshape(*actions.shape[:-1], *self._shape).astype(self._dtype)

    def picked(self, actions: Tensor) -> Tensor:
        """Return what actions of the space pick in each branch (last axis)."""
        axes = actions.shape[: actions.dim() - len(self._shape)]
        picked = (actions.reshape(*axes, -1) if self._shape else actions[..., None]).long()
        return picked - torch.from_numpy(self.starts).to(picked.device) if self._begins_elsewhere else picked

    def best(self, outputs: Tensor, allowed: Any) -> Tensor:
        """Return where the output of an allowed action is largest, in each branch (last axis)."""
        return torch.stack([mine.argmax(-1) for mine in self.ruled_out(outputs, allowed)], -1)

    def anything(self, numbers: Array, allowed: Array | None) -> Array:
        """Pick one of the allowed actions, all equally likely, by a number from 0 to 1 for each branch (last axis)."""
        if allowed is None:
            return (numbers * self.sizes).astype(np.int64)
        picked, first = [], 0
        for k, size in enumerate(self.sizes):
            mine = allowed[..., first : first + size]
            counted = np.cumsum(mine | ~mine.any(-1, keepdims=True), -1)
            picked.append((counted > (numbers[..., k] * counted[..., -1]).astype(np.int64)[..., None]).argmax(-1))
            first += size
        return np.stack(picked, -1)


def branches_of(space: spaces.Space[Any]) -> Branches | None:
    """Return the branches of a space, or `None` if its actions cannot be counted."""
    if isinstance(space, spaces.Discrete):
        return Branches(space, np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return Branches(space, space.nvec.reshape(-1), space.start.reshape(-1))
    if isinstance(space, spaces.MultiBinary):
        count = int(np.prod(space.shape))
        return Branches(space, np.full(count, 2), np.zeros(count, np.int64))
    return None
