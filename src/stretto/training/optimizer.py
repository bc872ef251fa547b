"""Adam for a block of agents: each has its own moments, count of steps, learning rate and limit of its gradient."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from stretto.policies.networks.parameters import Parameters
from stretto.spaces import Array


class Adam:
    """Moves the parameters of those agents that learn; of the others neither parameters nor moments change.

    `steps` counts the steps of each agent.
    """

    def __init__(self, parameters: Parameters, *, epsilon: float = 1e-5, most_gradient: float | None = None) -> None:
        self._parameters, self._epsilon, self._most = parameters, epsilon, most_gradient
        self._betas = 0.9, 0.999
        self._first = torch.zeros_like(parameters.flat)
        self._second = torch.zeros_like(parameters.flat)
        self.steps = torch.zeros(parameters.agents, dtype=torch.float64)
        self._room = torch.empty_like(parameters.flat)

    def norms(self) -> Tensor:
        """Return the norm of each agent's gradient."""
        norms: Tensor = torch.linalg.vector_norm(self._parameters.gradient, dim=1)
        return norms

    @torch.no_grad()
    def step(self, rates: Tensor, norms: Tensor, moving: Array) -> None:
        """Do a step with the gradients that are there, limited by their `norms`.

        `rates` are the agents' learning rates; `moving` says which of them learn.
        """
        gradient, first, second = self._parameters.gradient, self._first, self._second
        if self._most is not None:
            gradient.mul_((self._most / (norms + 1e-6)).clamp_(max=1.0)[:, None])
        if moving.all():
            self._move(slice(None), gradient, first, second, rates)
            return
        for agent in np.flatnonzero(moving).tolist():
            one = slice(agent, agent + 1)
            self._move(one, gradient[one], first[one], second[one], rates[one])

    def _move(self, agents: slice, gradient: Tensor, first: Tensor, second: Tensor, rates: Tensor) -> None:
        low, high = self._betas
        self.steps[agents] += 1
        steps = self.steps[agents]
        size = (rates / (1 - low**steps)).float()[:, None].to(first.device)
        scale = (1 - high**steps).rsqrt_().float()[:, None].to(first.device)
        first.lerp_(gradient, 1 - low)
        second.mul_(high).addcmul_(gradient, gradient, value=1 - high)
        room = self._room[agents]
        torch.sqrt(second, out=room)
        room.mul_(scale).add_(self._epsilon)
        torch.div(first, room, out=room)
        self._parameters.flat[agents].sub_(room.mul_(size))

    def state(self) -> dict[str, Array]:
        """Return all that it remembers; what is on the CPU as views."""
        return {name: array.cpu().numpy() for name, array in self._remembered().items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        for name, mine in self._remembered().items():
            mine.copy_(torch.from_numpy(np.asarray(state[name])))

    def _remembered(self) -> dict[str, Tensor]:
        return {"first moments": self._first, "second moments": self._second, "steps": self.steps}
