"""Parameters: the weights of a block of agents in one array, a row for each agent, and their gradients in another."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from stretto.spaces import Array

VECTOR = 8
"""Every width is a multiple of this, with zeros behind what counts. Then a product has no rest for other kernels, whose last
bits may differ, and an agent's numbers do not depend on who else is in its block."""

CHUNK = 32
"""Elementwise functions take so many numbers at a time. An agent has a multiple of it, so that none is left over."""

Shapes = Mapping[str, tuple[int, ...]]
Device = str | torch.device


def padded(width: int, to: int = VECTOR) -> int:
    """Return the least multiple of `to` that is not less than a width."""
    return -(-width // to) * to


class Parameters:
    """Named weights of every agent: `flat` and `gradient` are (agents, size), so an optimizer works on one array.

    A tower is one of several networks of equal shape that belong to an agent, such as its actor and its critic; `shapes`
    are the weights of each. What is `shared` is there once for all towers of an agent. `weights` has shared ones as (agents,
    ...), those of towers as (agents x towers, ...) if nothing is shared and as (agents, towers, ...) otherwise.
    `gradients` has views of the same form.
    """

    def __init__(
        self, agents: int, towers: int, shapes: Shapes, shared: Shapes | None = None, device: Device = "cpu"
    ) -> None:
        self.agents, self.towers = agents, towers
        self.shapes, self.shared = dict(shapes), dict(shared or {})
        self._split = padded(_size(self.shared), CHUNK)  # where the towers of an agent begin
        self.flat = torch.zeros(agents, self._split + towers * padded(_size(shapes), CHUNK), device=device)
        self.gradient = torch.zeros_like(self.flat)
        self.weights = {name: view.requires_grad_() for name, view in self.named(self.flat).items()}
        self.gradients = self.named(self.gradient)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of an array like `flat`, one for each weight."""
        shared, rest = flat[:, : self._split], flat[:, self._split :]
        towers = rest.view(self.agents, self.towers, -1) if self._split else flat.view(self.agents * self.towers, -1)
        return _views(shared, self.shared) | _views(towers, self.shapes)

    @property
    def flat_shared(self) -> Tensor:
        """A view of what all towers share."""
        return self.flat[:, : self._split]

    def part(self, agents: slice) -> Parameters:
        """Return those of some agents, copied."""
        return self._copy(self.flat[agents], self.flat.device)

    def to(self, device: Device) -> Parameters:
        """Return a copy on another device."""
        return self._copy(self.flat, device)

    def _copy(self, flat: Tensor, device: Device) -> Parameters:
        found = Parameters(len(flat), self.towers, self.shapes, self.shared, device)
        found.flat.copy_(flat)
        return found

    def by_tower(self, name: str, among: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return a view of the weights of towers, or of one of their `gradients`: (agents, towers, ...)."""
        weight = (self.weights if among is None else among)[name]
        return weight if self.shared else weight.view(self.agents, self.towers, *weight.shape[1:])

    def merged(self, name: str) -> Tensor:
        """Return the weights of towers as batched products take them: (agents x towers, ...)."""
        weight = self.weights[name]
        return weight.flatten(0, 1) if self.shared else weight

    def differentiate(
        self, results: list[Tensor], gradients: list[Tensor], names: Collection[str] | None = None
    ) -> None:
        """Write the gradient of results into `gradient`, given the gradient with respect to each of them.

        With `names`, that of other weights stays as it is.
        """
        names = self.weights if names is None else names
        weights = [self.weights[name] for name in names]
        found: tuple[Tensor | None, ...] = torch.autograd.grad(results, weights, gradients, allow_unused=True)
        for mine, new in zip((self.gradients[name] for name in names), found, strict=True):
            if new is None:
                mine.zero_()
            else:
                mine.copy_(new)

    def state(self) -> dict[str, Array]:
        """Return all weights; those on the CPU as a view."""
        return {"weights": self.flat.cpu().numpy()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        self.flat.copy_(torch.from_numpy(np.asarray(state["weights"])))


def _size(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def _views(rows: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return a view for each shape, one behind the other in the last axis."""
    views, begin = {}, 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape)
        views[name] = rows[..., begin:end].view(*rows.shape[:-1], *shape)
        begin = end
    return views
