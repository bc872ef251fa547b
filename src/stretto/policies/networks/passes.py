"""Pass: what agents saw, on its way through the towers of their networks, and the gradient on its way back."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from stretto.policies.networks.layers import back, through
from stretto.policies.networks.parameters import Parameters


class Pass:
    """The `outputs` of all towers, (agents, towers, rows, width), for what was seen, and the way back from there.

    Only what comes before the towers, if anything does, is differentiated automatically.
    """

    def __init__(
        self, parameters: Parameters, activation: str, seen: Tensor, weights: list[Tensor], biases: list[Tensor]
    ) -> None:
        self._parameters, self._activation, self._seen = parameters, activation, seen
        self._weights = weights
        with torch.no_grad():
            *self._went, outputs = through(seen, activation, weights, biases)
        self.outputs = outputs.view(parameters.agents, parameters.towers, *outputs.shape[1:])

    def back(self, gradient: Tensor, by_scales: Tensor | None = None) -> None:
        """Write the gradient of all parameters, given those of the outputs and of the first tower's scales."""
        parameters, to_agents = self._parameters, len(self._seen) if self._seen.requires_grad else 0
        places = [
            [parameters.gradients[f"{name} {layer}"] for layer in range(len(self._weights))]
            for name in ("weight", "bias")
        ]
        # With something shared, towers do not lie at equal distances there, as products need them to.
        rooms = [list(map(_merged_room, some)) for some in places] if parameters.shared else places
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


def _merged_room(place: Tensor) -> Tensor:
    return place.new_empty(place.shape[0] * place.shape[1], *place.shape[2:])
