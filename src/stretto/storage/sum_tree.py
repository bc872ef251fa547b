"""Draws leaves in proportion to their values, for many agents and draws at once."""

from __future__ import annotations

import numpy as np

from stretto.spaces import Array

_CHILDREN = 32
"""Of a node. A level costs a handful of numpy calls, so that few wide levels are faster than many narrow ones."""

_MANY = 1024
"""From so many leaves on it pays to sum up each node only once."""


class SumTree:
    """Trees of one size, one for each agent, whose every node holds the sum of its children.

    A node is always summed up anew from all its children, so that it depends on the leaves alone, not on their history.
    """

    def __init__(self, agents: int, leaves: int) -> None:
        self.levels: list[Array] = []
        size = leaves
        while not self.levels or size > 1:
            size = -(-size // _CHILDREN)
            self.levels.append(np.zeros((agents, size * _CHILDREN)))
        self._agents = np.arange(agents)[:, None]

    @property
    def totals(self) -> Array:
        """The sum of each agent's leaves."""
        return np.asarray(self.levels[-1].sum(axis=1))

    def get(self, leaves: Array) -> Array:
        """Return the values of leaves, `(agents, count)`."""
        return self.levels[0][self._agents, leaves]

    def set(self, agents: Array, leaves: Array, values: Array | float) -> None:
        """Set leaves of agents, arrays of one shape; where one is named twice, the last value counts."""
        self.levels[0][agents, leaves] = values
        for lower, upper in zip(self.levels, self.levels[1:], strict=False):
            leaves = leaves // _CHILDREN
            families = agents * (lower.shape[1] // _CHILDREN) + leaves
            if families.size > _MANY:
                families, once = np.unique(families, return_index=True)
                agents, leaves = agents.reshape(-1)[once], leaves.reshape(-1)[once]
            upper[agents, leaves] = lower.reshape(-1, _CHILDREN).take(families, axis=0).sum(axis=-1)

    def find(self, amounts: Array) -> Array:
        """Return the leaf of each agent at which the leaves up to it sum up to more than an amount, `(agents, count)`.

        A leaf whose value is 0 is never found, unless all of an agent's are.
        """
        found = np.zeros(amounts.shape, np.int64)
        for level in reversed(self.levels):
            nodes = found + self._agents * (level.shape[1] // _CHILDREN)
            sums = level.reshape(-1, _CHILDREN).take(nodes, axis=0).cumsum(axis=-1)
            child = np.count_nonzero(sums <= amounts[..., None], axis=-1)
            # Sums of another order may round to less than the amount: then it is the last child that has any.
            child = np.minimum(child, np.count_nonzero(sums < sums[..., -1:], axis=-1))
            before = np.take_along_axis(sums, np.maximum(child - 1, 0)[..., None], axis=-1)[..., 0]
            amounts = amounts - np.where(child > 0, before, 0.0)
            found = found * _CHILDREN + child
        return found
