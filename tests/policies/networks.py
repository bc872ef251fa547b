"""Networks of torch's own layers as policies, with widths for which rows of a batch are not interchangeable.

torch is imported where it is used: the other tests must not wait for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec

OUTPUTS, HIDDEN = 5, 13


class Linear(MultiAgentPolicy):
    """One linear layer, for agents that observe the same number of inputs."""

    def __init__(self, world: WorldSpec) -> None:
        super().__init__(world)
        import torch

        self.inputs = {agent: space.shape[0] for agent, space in world.observation_spaces.items()}
        torch.manual_seed(0)
        self.layers = {size: torch.nn.Linear(size, OUTPUTS) for size in sorted(set(self.inputs.values()))}

    class Agent(AgentPolicy):
        agent: str
        hidden = np.zeros(HIDDEN, np.float32)

    def agent_policy(self, agent: str) -> AgentPolicy:
        made = self.Agent()
        made.agent = agent
        return made

    def step_batch(self, agent_policies: list[Any], observations: list[Any]) -> list[Any]:
        return list(self.forward(self.layers[len(observations[0])], np.stack(observations)))

    def forward(self, layer: Any, rows: Any) -> Any:
        import torch

        with torch.no_grad():
            return layer(torch.from_numpy(np.ascontiguousarray(rows, np.float32))).numpy()


class Recurrent(Linear):
    """A GRU before the layer: every agent has a state of its own."""

    def __init__(self, world: WorldSpec) -> None:
        super().__init__(world)
        import torch

        torch.manual_seed(1)
        self.cell = torch.nn.GRUCell(max(self.inputs.values()), HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, OUTPUTS)

    def step_batch(self, agent_policies: list[Any], observations: list[Any]) -> list[Any]:
        import torch

        with torch.no_grad():
            before = torch.from_numpy(np.stack([one.hidden for one in agent_policies]))
            after = self.cell(torch.from_numpy(np.stack(observations)), before)
            for one, hidden in zip(agent_policies, after.numpy(), strict=True):
                one.hidden = hidden.copy()
            return list(self.head(after).numpy())


class InGroups(Linear):
    """A layer for each number of inputs, which computes those agents alone that have it."""

    def step_batch(self, agent_policies: list[Any], observations: list[Any]) -> list[Any]:
        actions: list[Any] = [None] * len(observations)
        for size, layer in self.layers.items():
            group = [i for i, one in enumerate(agent_policies) if self.inputs[one.agent] == size]
            if group:
                for i, action in zip(
                    group, self.forward(layer, np.stack([observations[i] for i in group])), strict=True
                ):
                    actions[i] = action
        return actions
