"""RewardScale: rewards of each agent divided by how much its returns vary, so that one learning rate fits all worlds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from stretto.policies.networks.normalizer import MOST, Normalizer
from stretto.spaces import Array


class RewardScale:
    """Follows the discounted sum of rewards in every lane, and remembers its variance by agent."""

    def __init__(self, lanes: int, agents: int, discount: float) -> None:
        self._discount = discount
        self._sums = np.zeros((lanes, agents))
        self._statistics = Normalizer(agents, 1)

    def __call__(self, rewards: Array, ended: Array, counted: Array, learning: Array) -> Array:
        """Take in (rows, lanes, agents) rewards, and return them scaled. Rows that are not `counted` are nobody's.

        The scale of agents that are not `learning` stays.
        """
        sums: Array = np.zeros(rewards.shape)
        for row, given in enumerate(rewards):
            np.multiply(self._sums, self._discount, out=self._sums, where=counted[row])
            self._sums += given
            sums[row] = self._sums
            self._sums[ended[row]] = 0.0
        by_agent = np.moveaxis(sums, 2, 0).reshape(sums.shape[2], -1, 1)
        self._statistics.update(
            torch.from_numpy(by_agent), np.moveaxis(counted & learning, 2, 0).reshape(sums.shape[2], -1)
        )
        scale = np.sqrt(self._statistics.variances[:, 0] + 1e-8)
        return np.clip(rewards / scale, -MOST, MOST).astype(np.float32)

    def state(self) -> dict[str, Array]:
        """Return all that it remembers, as views; call `load_state` to become it."""
        return {"sums": self._sums.T, **self._statistics.state()}  # each by agent

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        self._sums[...] = state["sums"].T
        self._statistics.load_state({name: state[name] for name in self._statistics.state()})
