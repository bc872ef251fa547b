"""Sequences: consecutive rows of a segment, from which networks with a memory learn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stretto.policies.networks.network import Network
from stretto.spaces import Array


@dataclass(frozen=True)
class Remembered:
    """What a network with a memory needs beside rows, (agents, time, sequences).

    `states` (agents, sequences, width) are those with which sequences begin. Rows where `resets` is true begin with an
    empty one. Rows in which nobody `acted` leave no trace.
    """

    states: Tensor
    resets: Tensor
    acted: Tensor

    def to(self, device: torch.device) -> Remembered:
        """Return it on a device."""
        return Remembered(self.states.to(device), self.resets.to(device), self.acted.to(device))

    def seen(self, network: Network, rows: Tensor) -> Tensor:
        """Return what the towers of a network take of (agents, time x sequences, width) rows."""
        by_time = rows.view(*self.acted.shape, -1)
        return network.recall(by_time, self.states, self.resets, self.acted)[0]


class Sequences:
    """A segment cut into sequences of `length` rows of a lane.

    `acted` is (agents, rows, lanes). Rows are numbered through, lane by lane. `memory` is what agents remembered before
    they acted in each of them: nothing before their first decision.
    """

    def __init__(self, acted: Array, length: int = 1, memory: Array | None = None) -> None:
        agents, count, lanes = acted.shape
        self.length = length
        firsts = np.arange(count // length)[:, None] * (length * lanes) + np.arange(lanes)
        self.rows = firsts.reshape(-1, 1) + np.arange(length) * lanes  # of each sequence
        self.acted = acted.reshape(agents, -1)
        self._memory = None if memory is None else memory.reshape(agents, count * lanes, -1)
        self._begins = None if self._memory is None else self.acted & ~self._memory.any(-1)

    def remembered(self, numbers: Array, there: Array) -> Remembered | None:
        """Return what is needed beside the rows of some sequences of each agent: `numbers` are (agents, sequences)."""
        if self._memory is None or self._begins is None:
            return None
        agents = np.arange(len(numbers))[:, None, None]
        rows = self.rows[numbers]
        acted = self.acted[agents, rows] & there[..., None]
        first = np.take_along_axis(rows, acted.argmax(-1)[..., None], -1)[..., 0]  # until it acts, nothing changes
        parts = self._memory[agents[..., 0], first], self._begins[agents, rows].swapaxes(1, 2), acted.swapaxes(1, 2)
        return Remembered(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))

    def whole(self) -> Remembered | None:
        """Return what is needed beside all rows and those that follow the last ones, which nobody has acted on yet."""
        lanes = np.broadcast_to(np.arange(len(self.rows)), (len(self.acted), len(self.rows)))
        found = self.remembered(lanes, np.ones(lanes.shape, np.bool_))
        if found is None:
            return None
        further = torch.zeros_like(found.acted[:, :1])
        return Remembered(found.states, torch.cat([found.resets, further], 1), torch.cat([found.acted, further], 1))
