"""Adam for a block of agents: each has its own moments, count of steps, learning rate and limit of its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        self._first = torch.zeros_like(parameters.flat)
        self._second = torch.zeros_like(parameters.flat)
        self.steps = torch.zeros(parameters.agents, device=parameters.flat.device)
        arrays = parameters.flat, parameters.gradient, self._first, self._second, self.steps
        self._by_agent = [array.unbind(0) for array in arrays]

    def norms(self) -> Tensor:
        """Return the norm of each agent's gradient."""
        norms: Tensor = torch.linalg.vector_norm(self._parameters.gradient, dim=1)
        return norms

    @torch.no_grad()
    def step(self, rates: Sequence[float], norms: Array, moving: Array) -> None:
        """Do a step with the gradients that are there, limited by their `norms`.

        `rates` are the agents' learning rates; `moving` says which of them learn.
        """
        sizes, gradients = norms.tolist(), self._by_agent[1]
        together: dict[float, list[int]] = {}
        for agent in moving.nonzero()[0].tolist():
            together.setdefault(rates[agent], []).append(agent)
            if self._most is not None and sizes[agent] + 1e-6 > self._most:
                gradients[agent].mul_(self._most / (sizes[agent] + 1e-6))
        self.steps.add_(torch.from_numpy(moving).to(self.steps.device))
        for rate, agents in together.items():
            self._move(agents, rate)

    def _move(self, agents: list[int], rate: float) -> None:
        """Do a step for agents with one learning rate: one pass over all that a step reads and writes."""
        weights, gradients, first, second, steps = ([some[agent] for agent in agents] for some in self._by_agent)
        torch._fused_adam_(
            weights,
            gradients,
            first,
            second,
            [],
            steps,
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> dict[str, Array]:
        """Return all that it remembers; what is on the CPU as views."""
        return {name: array.cpu().numpy() for name, array in self._remembered().items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        for name, mine in self._remembered().items():
            mine.copy_(torch.from_numpy(np.asarray(state[name])))

    def _remembered(self) -> dict[str, Tensor]:
        return {"first moments": self._first, "second moments": self._second, "steps": self.steps}
