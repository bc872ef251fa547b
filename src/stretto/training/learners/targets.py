"""Target networks: older weights that say what follows is worth, so that values do not chase themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.policies.networks.network import Network
from stretto.policies.networks.values import ActionValues
from stretto.spaces import Array


class Follower:
    """Weights that follow others, agent by agent: all of them every `interval` of its updates, or by an `average` in each."""

    def __init__(self, leading: Network, following: Network, interval: int, average: float | None) -> None:
        self._interval, self._average = interval, average
        self._from, self._to = (one.parameters.flat for one in (leading, following))
        self._counts = np.zeros(len(self._to), np.int64)  # the updates of each agent
        self.begin()

    def begin(self) -> None:
        """Have the same weights."""
        self._to.copy_(self._from)

    @torch.no_grad()
    def follow(self, moved: Array) -> None:
        """Take note of an update of those agents that `moved`."""
        self._counts += moved
        if self._average is not None:
            for agent in np.flatnonzero(moved).tolist():
                self._to[agent].lerp_(self._from[agent], self._average)
            return
        for agent in np.flatnonzero(moved & (self._counts % self._interval == 0)).tolist():
            self._to[agent].copy_(self._from[agent])

    def state(self) -> dict[str, Array]:
        """Return all that it remembers, as views."""
        return {"weights": self._to.numpy(), "updates": self._counts}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        for name, mine in self.state().items():
            mine[...] = state[name]


class TargetNetwork(Follower):
    """A network of action values that follows another one."""

    def __init__(self, online: ActionValues, target: ActionValues, interval: int, average: float | None) -> None:
        self._online, self._target = online, target
        super().__init__(online.network, target.network, interval, average)

    @property
    def network(self) -> Network:
        """The network with the older weights."""
        return self._target.network

    @torch.no_grad()
    def ahead(self, seen: Tensor, seen_online: Tensor | None, allowed: Any, shares: Tensor | None) -> Tensor:
        """Return what the best actions are worth, averaged over branches: (agents, rows, how many quantiles).

        `seen` is what this network sees. Given what the network that learns sees, that one says which actions are best
        (double Q-learning).
        """
        target = self._target
        worth = target(seen, shares)
        if seen_online is not None:
            means = self._online.means(seen_online)
        else:
            means = worth.squeeze(2) if shares is None else target.means(seen)
        return target.of(worth, target.branches.best(means, allowed)).mean(-1)
