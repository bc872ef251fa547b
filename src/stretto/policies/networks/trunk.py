"""Trunk: the first hidden layers of a network, where all towers of an agent share them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stretto.policies.networks.initial import orthogonal, uniform
from stretto.policies.networks.layers import layered
from stretto.policies.networks.parameters import padded
from stretto.seeding.streams import SeedTree


class Trunk:
    """Layers with an activation after each. Rows of (agents, rows, inputs) become (agents, rows, `width`).

    `size` numbers of what it sees count, and `inputs` is how many there are with zeros behind them.
    """

    def __init__(self, size: int, inputs: int, widths: Sequence[int], activation: str, initial: str) -> None:
        self._sizes, self._activation, self._initial = [size, *widths], activation, initial
        self.size, self.width = widths[-1], padded(widths[-1])
        both = [inputs, *map(padded, widths)]
        self._layers = range(len(widths))
        self.shapes: dict[str, tuple[int, ...]] = {}
        for layer in self._layers:
            self.shapes[f"shared weight {layer}"] = both[layer], both[layer + 1]
            self.shapes[f"shared bias {layer}"] = 1, both[layer + 1]

    def begin(self, weights: Mapping[str, Tensor], agent: int, tree: SeedTree) -> None:
        """Draw the first weights of an agent."""
        for layer in self._layers:
            size = self._sizes[layer], self._sizes[layer + 1]
            mine = tree.child("shared", "layer", layer)
            weight = weights[f"shared weight {layer}"][agent]
            if self._initial == "uniform":
                both = torch.from_numpy(uniform(mine, *size))
                weight[: size[0], : size[1]] = both[:-1]
                weights[f"shared bias {layer}"][agent, 0, : size[1]] = both[-1]
            else:
                weight[: size[0], : size[1]] = torch.from_numpy(orthogonal(mine, *size)) * math.sqrt(2.0)

    def __call__(self, weights: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Return what towers take."""
        matrices = [weights[f"shared weight {layer}"] for layer in self._layers]
        biases = [weights[f"shared bias {layer}"] for layer in self._layers]
        return layered(rows, self._activation, matrices, biases, activated=True)
