"""Whether a block of networks computes the bits that its agents would compute alone, on this machine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stretto.policies.networks.network import Network

TIME = 2
"""How many rows follow each other, where networks remember."""


def stacks_exactly(network: Network, batch: int) -> bool:
    """Compute outputs and gradients of `batch` rows, in the block and alone; return whether they are equal.

    The first and the last agent are compared, which takes some milliseconds. The shapes are those of the network; the rows
    are random, and the same every time.
    """
    draw = np.random.default_rng(0)
    inputs, remembers = network.inputs, network.memory is not None
    shape = network.agents, TIME if remembers else 1, batch, inputs.width
    numbers = draw.integers(0, 256, shape) if inputs.bytes else draw.standard_normal(shape)
    rows = torch.from_numpy(numbers.astype(np.uint8 if inputs.bytes else np.float32))
    states = draw.standard_normal((network.agents, batch, network.state_width)).astype(np.float32)
    rows = rows.to(network.device)
    before = torch.from_numpy(states).to(network.device) if remembers else None
    together = _computed(network.part(slice(None)), rows, before)
    for agent in {0, network.agents - 1}:
        one = slice(agent, agent + 1)
        alone = _computed(network.part(one), rows[one], None if before is None else before[one])
        if not all(torch.equal(mine, all_[one]) for mine, all_ in zip(alone, together, strict=True)):
            return False
    return True


def _computed(network: Network, rows: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, their gradient, and what the first tower says when it acts."""
    resets = torch.zeros(rows.shape[:3], dtype=torch.bool, device=rows.device)
    going = network.go_through(_taken(network, network.recall(rows, states, resets)[0]))
    going.back(going.outputs.tanh())
    with torch.no_grad():
        acting = network.tower(_taken(network, network.see(rows[:, 0], states)[0]), 0)
    return going.outputs, network.parameters.gradient, acting


def _taken(network: Network, seen: Tensor) -> Tensor:
    """Return what towers take: numbers beside what is seen, too, if they need any."""
    if not network.beside:
        return seen
    return network.joined(seen[..., :1].expand(-1, -1, network.beside), seen)
