"""Pass: what agents saw, on its way through the towers of their networks, and the gradient on its way back."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from stretto.policies.networks.layers import back, back_to_rows, through
from stretto.policies.networks.parameters import Parameters

Layers = tuple[list[Tensor], list[Tensor]]
"""Weights and biases, layer by layer."""


class Pass:
    """The `outputs` of all towers, (agents, towers, rows, width), for what was seen, and the way back from there.

    Only what comes before the towers, if anything does, is differentiated automatically.
    """

    def __init__(self, parameters: Parameters, activation: str, seen: Tensor, layers: Layers, places: Layers) -> None:
        """Let rows go through `layers`: the weights and biases of towers, whose gradients have `places` in that of all."""
        self._parameters, self._activation, self._seen = parameters, activation, seen
        self._weights, self._places = layers[0], places
        with torch.no_grad():
            *self._went, outputs = through(seen, activation, *layers)
        self.outputs = outputs.view(parameters.agents, parameters.towers, *outputs.shape[1:])

    def back(self, gradient: Tensor, by_scales: Tensor | None = None) -> None:
        """Write the gradient of all parameters, given those of the outputs and of the first tower's scales."""
        parameters, places = self._parameters, self._places
        to_agents = self._seen.shape[0] if self._seen.requires_grad else 0
        # With something shared, towers do not lie at equal distances there, as products need them to.
        rooms = [list(map(_room, some)) for some in places] if parameters.shared else places
        with torch.no_grad():
            found = back(
                gradient.flatten(0, 1), self._went, self._activation, self._weights, *rooms, to_agents=to_agents
            )
            if parameters.shared:
                for place, room in zip(chain(*places), chain(*rooms), strict=True):
                    place.copy_(room.view(place.shape))
            if by_scales is not None:
                parameters.by_tower("scales", parameters.gradients)[:, 0] = by_scales
        if found is not None:
            parameters.differentiate([self._seen], [found], parameters.shared)

    @torch.no_grad()
    def pull(self, gradient: Tensor) -> Tensor:
        """Return the gradient of what was seen, given that of the outputs; that of parameters stays as it is."""
        return back_to_rows(
            gradient.flatten(0, 1), self._went, self._activation, self._weights, to_agents=self._seen.shape[0]
        )


def _room(place: Tensor) -> Tensor:
    return place.new_empty(place.shape[0] * place.shape[1], *place.shape[2:])
