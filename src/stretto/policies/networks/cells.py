"""Cells: what a network remembers from row to row. GRU and LSTM, for a block of agents in batched products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.policies.networks.initial import orthogonal
from stretto.policies.networks.parameters import CHUNK, padded
from stretto.seeding.streams import SeedTree

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Cell:
    """A kind of memory. A state is a row of `parts` vectors, of which the first is what the layers above see.

    `step` takes what the inputs give to all gates, what the last outputs give to them, and the state; it returns the new
    state. `biases` are what the biases of the gates begin with.
    """

    gates: int
    parts: int
    biases: tuple[float, ...]
    step: Callable[[Tensor, Tensor, Tensor], Tensor]


def gru_step(seen: Tensor, recalled: Tensor, state: Tensor) -> Tensor:
    """Return the next state of a GRU; gates: reset, update, new."""
    width = state.shape[-1]
    both = torch.sigmoid(seen[..., : 2 * width] + recalled[..., : 2 * width])
    reset, update = both.chunk(2, -1)
    new = torch.tanh(torch.addcmul(seen[..., 2 * width :], reset, recalled[..., 2 * width :]))
    return torch.addcmul(new, update, state - new)


def lstm_step(seen: Tensor, recalled: Tensor, state: Tensor) -> Tensor:
    """Return the next state of an LSTM; gates: input, forget, output, new."""
    width = state.shape[-1] // 2
    gates = seen + recalled
    take, keep, show = torch.sigmoid(gates[..., : 3 * width]).chunk(3, -1)
    kept = torch.addcmul(keep * state[..., width:], take, torch.tanh(gates[..., 3 * width :]))
    return torch.cat([show * torch.tanh(kept), kept], -1)


CELLS = {
    "gru": Cell(gates=3, parts=1, biases=(0.0, 0.0, 0.0), step=gru_step),
    "lstm": Cell(gates=4, parts=2, biases=(0.0, 1.0, 0.0, 0.0), step=lstm_step),
}


class Memory:
    """A cell for each agent of a block, `width` wide, of which `size` count.

    Its width is a multiple of what elementwise functions take at a time: then every row is, however many there are.
    """

    def __init__(self, kind: str, inputs: int, input_width: int, size: int) -> None:
        self.cell, self._inputs, self.size, self.width = CELLS[kind], inputs, size, padded(size, CHUNK)
        gates = self.cell.gates * self.width
        self.shapes = {
            "memory inputs": (input_width, gates),
            "memory outputs": (self.width, gates),
            "memory input bias": (1, gates),
            "memory output bias": (1, gates),
        }

    def begin(self, weights: Weights, agent: int, tree: SeedTree) -> None:
        """Draw the first weights of an agent, gate by gate."""
        for gate, bias in enumerate(self.cell.biases):
            mine = slice(gate * self.width, gate * self.width + self.size)
            for name, inputs in (("memory inputs", self._inputs), ("memory outputs", self.size)):
                drawn = orthogonal(tree.child(name, gate), inputs, self.size)
                weights[name][agent, :inputs, mine] = torch.from_numpy(drawn)
            weights["memory input bias"][agent, 0, mine] = bias

    @property
    def state_width(self) -> int:
        """How many numbers a state has."""
        return self.cell.parts * self.width

    def step(self, weights: Weights, rows: Tensor, states: Tensor) -> Tensor:
        """Return the states (agents, rows, state width) after one row (agents, rows, inputs) for each of them."""
        return self._next(weights, self._gates(weights, rows), states)

    def unroll(
        self, weights: Weights, rows: Tensor, states: Tensor, resets: Tensor, acted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Go through (agents, time, batch, inputs) rows; return what is seen of each state, and the last states.

        Where `resets` is true, a row begins with an empty state. Where `acted` is false, the state after a row is
        forgotten again: it is that of the row before.
        """
        gates = self._gates(weights, rows.flatten(1, 2)).view(*rows.shape[:3], -1)
        begins = (~resets).to(rows.dtype)[..., None]
        looks = rows.device.type == "cpu"  # elsewhere, to look would be to wait
        some_begin = resets.any(2).any(0).tolist() if looks else [True] * rows.shape[1]
        stays = None if acted is None or (looks and bool(acted.all())) else acted[..., None]
        outputs = []
        for time, seen in enumerate(gates.unbind(1)):
            if some_begin[time]:
                states = states * begins[:, time]
            following = self._next(weights, seen, states)
            outputs.append(following[..., : self.width])
            states = following if stays is None else torch.where(stays[:, time], following, states)
        return torch.stack(outputs, 1), states

    def _gates(self, weights: Weights, rows: Tensor) -> Tensor:
        return torch.baddbmm(weights["memory input bias"], rows, weights["memory inputs"])

    def _next(self, weights: Weights, seen: Tensor, states: Tensor) -> Tensor:
        shown = states[..., : self.width]
        recalled = torch.baddbmm(weights["memory output bias"], shown, weights["memory outputs"])
        return self.cell.step(seen, recalled, states)
