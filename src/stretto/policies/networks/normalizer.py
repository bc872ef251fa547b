"""Normalizer: running means and variances of what each agent of a block has seen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from stretto.spaces import Array

MOST = 10.0
"""Numbers are at most so many standard deviations away from the mean."""


class Normalizer:
    """Brings the first `width` numbers of rows to mean 0 and variance 1, agent by agent; images behind them stay.

    Numbers that have `weights` get these as their standard deviation.
    """

    def __init__(self, agents: int, width: int, weights: Array | None = None) -> None:
        self._weights = None if weights is None else torch.from_numpy(weights)
        self.counts = np.zeros(agents)
        self.means, self.variances = np.zeros((agents, width)), np.ones((agents, width))
        self._refresh()

    def __call__(self, rows: Tensor) -> Tensor:
        """Return (agents, rows, width) numbers, normalized."""
        width = self.means.shape[1]
        found = rows[..., :width].sub(self._mean).mul_(self._scale).clamp_(-MOST, MOST)
        if self._weights is not None:
            found.mul_(self._weights)
        return found if rows.shape[-1] == width else torch.cat([found, rows[..., width:]], -1)

    def part(self, agents: slice) -> Normalizer:
        """Return that of some agents, copied."""
        weights = None if self._weights is None else self._weights.numpy()
        found = Normalizer(len(self.counts[agents]), self.means.shape[1], weights)
        found.load_state({name: array[agents] for name, array in self.state().items()})
        return found

    def update(self, rows: Tensor, counted: Array) -> None:
        """Take in the rows that are `counted`, (agents, rows)."""
        for agent, mine in enumerate(counted):  # one by one: the order of a sum must not depend on the others
            some = rows[agent, :, : self.means.shape[1]].numpy()[mine].astype(np.float64)
            if not len(some):
                continue
            count = self.counts[agent] + len(some)
            away = some.mean(0) - self.means[agent]
            squares = self.variances[agent] * self.counts[agent] + some.var(0) * len(some)
            squares += away**2 * (self.counts[agent] * len(some) / count)
            self.means[agent] += away * (len(some) / count)
            self.variances[agent], self.counts[agent] = squares / count, count
        self._refresh()

    def state(self) -> dict[str, Array]:
        """Return all that it remembers, as views; call `load_state` to become it."""
        return {"counts": self.counts, "means": self.means, "variances": self.variances}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        for name, mine in self.state().items():
            mine[...] = state[name]
        self._refresh()

    def _refresh(self) -> None:
        self._mean = torch.from_numpy(self.means.astype(np.float32))[:, None]
        self._scale = torch.from_numpy((1.0 / np.sqrt(self.variances + 1e-8)).astype(np.float32))[:, None]
