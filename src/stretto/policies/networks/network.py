"""Network: the networks of a block of agents: what they see, what they remember, and a row of outputs for each tower."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor

from stretto.policies.networks.cells import Memory
from stretto.policies.networks.convolutions import Convolutions
from stretto.policies.networks.initial import orthogonal, uniform
from stretto.policies.networks.inputs import Inputs
from stretto.policies.networks.layers import layered
from stretto.policies.networks.limits import NotNegative, Whole
from stretto.policies.networks.parameters import Device, Parameters, padded
from stretto.policies.networks.passes import Layers, Pass
from stretto.policies.networks.quantiles import COSINES, with_shares
from stretto.policies.networks.trunk import Trunk
from stretto.seeding.streams import SeedTree


@dataclass(frozen=True)
class NetworkSettings:
    """The shape of a network: the widths of its hidden layers, and the function after each.

    With a `body` of "auto", large images go through convolutions first; "mlp" takes all images as plain numbers, "cnn"
    convolves small ones too. With a `memory`, what was seen goes through a GRU or LSTM of `memory_width` before the layers.
    The first weights of layers are `initial`ly orthogonal and biases zero, or both are drawn evenly. Towers, such as actor
    and critic, have the first `shared_layers` of the hidden layers in common; where a network sees many numbers, that halves
    the work. With `balance_parts`, a few numbers in a Dict weigh as much as the many of another part of it.
    """

    widths: tuple[Whole, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    body: Literal["auto", "mlp", "cnn"] = "auto"
    memory: Literal["gru", "lstm"] | None = None
    memory_width: Whole = 64
    initial: Literal["orthogonal", "uniform"] = "orthogonal"
    shared_layers: NotNegative = 0
    balance_parts: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> NetworkSettings:
        """Return the settings that JSON's values stand for."""
        return cls(**{**values, "widths": tuple(values["widths"])})


class Network:
    """Networks of equal shape, one for each agent and tower. `outputs` are the outputs of each tower.

    An agent's towers share its convolutions, its memory and perhaps some layers. All layers are computed in one batched
    product each; what an agent gets does not depend on who else is there. Networks with `quantiles` can be asked for
    quantiles of their outputs, by the share of the distribution below each. Towers may take so many numbers, such as those
    of an action, `beside` what is seen: see `joined`.
    """

    def __init__(  # noqa: PLR0913  a network is made in three places, and each says all of this
        self,
        trees: Sequence[SeedTree],
        space: spaces.Space[Any],
        outputs: Sequence[int],
        settings: NetworkSettings,
        gains: Sequence[float],
        scales: int = 0,
        *,
        quantiles: bool = False,
        beside: int = 0,
    ) -> None:
        self.inputs, self.outputs = Inputs(space, settings.body, balanced=settings.balance_parts), tuple(outputs)
        self.settings, self._activation = settings, settings.activation
        size, width = self.inputs.size, self.inputs.width
        shared: dict[str, tuple[int, ...]] = {}
        self._convolutions = self.memory = self._trunk = None
        if self.inputs.images:
            self._convolutions = Convolutions(self.inputs.images, self.inputs.numbers)
            size = width = self._convolutions.width
            shared |= self._convolutions.shapes
        if settings.memory is not None:
            self.memory = Memory(settings.memory, size, width, settings.memory_width)
            size, width = self.memory.size, self.memory.width
            shared |= self.memory.shapes
        common, own = settings.widths[: settings.shared_layers], settings.widths[settings.shared_layers :]
        if common:
            self._trunk = Trunk(size, width, common, settings.activation, settings.initial)
            size, width = self._trunk.size, self._trunk.width
            shared |= self._trunk.shapes
        self.seen_size, self.beside = size, beside
        self._sizes = [beside + size, *own]
        widths = [padded(beside) + width, *map(padded, own), padded(max(outputs))]
        self._layers = range(len(widths) - 1)
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in self._layers:
            shapes[f"weight {layer}"] = widths[layer], widths[layer + 1]
            shapes[f"bias {layer}"] = 1, widths[layer + 1]
        shapes["scales"] = (scales,)
        # The layer that sees the cosines of shares too: the last hidden one, or the outputs if that is the first.
        self._mixed = max(len(own) - 1, min(1, len(own))) if quantiles else None
        if self._mixed is not None:
            shapes |= {"weight cosines": (COSINES, widths[self._mixed]), "bias cosines": (1, widths[self._mixed])}
        self.use(Parameters(len(trees), len(outputs), shapes, shared))
        with torch.no_grad():
            for agent, tree in enumerate(trees):
                self._begin(agent, tree, gains)

    def use(self, parameters: Parameters) -> None:
        """Compute with other parameters of the same shapes."""
        self.agents, self.parameters = parameters.agents, parameters
        self._views: Layers | None = None
        if not parameters.shared:
            weights, biases = self._merged()
            self._views = [one.detach() for one in weights], [one.detach() for one in biases]
        gradients = parameters.gradients
        self._places = (
            [gradients[f"weight {layer}"] for layer in self._layers],
            [gradients[f"bias {layer}"] for layer in self._layers],
        )
        self.scales = parameters.by_tower("scales").detach()[:, 0]
        """The parameters of the first tower that do not depend on what is seen: (agents, how many)."""
        # Acting is a matter of microseconds: these views are made once.
        self._of_tower = [
            tuple(
                [parameters.by_tower(f"{name} {layer}").detach()[:, tower] for layer in self._layers]
                for name in ("weight", "bias")
            )
            for tower in range(len(self.outputs))
        ]

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.parameters.flat.device

    def to(self, device: Device) -> None:
        """Compute on another device from now on."""
        self.use(self.parameters.to(device))

    def part(self, agents: slice) -> Network:
        """Return the networks of some agents, with copies of their weights."""
        found = copy.copy(self)
        found.use(self.parameters.part(agents))
        return found

    def _begin(self, agent: int, tree: SeedTree, gains: Sequence[float]) -> None:
        """Draw the first weights of an agent."""
        for part in (self._convolutions, self.memory, self._trunk):
            if part is not None:
                part.begin(self.parameters.weights, agent, tree)
        for tower, (count, gain) in enumerate(zip(self.outputs, gains, strict=True)):
            for layer in self._layers:
                last = layer == self._layers[-1]
                size = self._sizes[layer], count if last else self._sizes[layer + 1]
                mine = tree.child("tower", tower, "layer", layer)
                weight = self.parameters.by_tower(f"weight {layer}")[agent, tower]
                # Beside what is seen is padded on its own: what is seen follows there.
                split = self.beside if layer == 0 else size[0]
                parts = weight[:split, : size[1]], weight[padded(split) :][: size[0] - split, : size[1]]
                if self.settings.initial == "uniform":
                    both = torch.from_numpy(uniform(mine, *size))
                    parts[0][...], parts[1][...] = both[:split], both[split:-1]
                    self.parameters.by_tower(f"bias {layer}")[agent, tower][0, : size[1]] = both[-1]
                else:
                    drawn = torch.from_numpy(orthogonal(mine, *size))
                    drawn = drawn * (gain if last else math.sqrt(2.0))
                    parts[0][...], parts[1][...] = drawn[:split], drawn[split:]
            if self._mixed is not None:
                drawn = torch.from_numpy(
                    orthogonal(tree.child("tower", tower, "cosines"), COSINES, self._sizes[self._mixed])
                )
                weight = self.parameters.by_tower("weight cosines")[agent, tower]
                weight[:, : drawn.shape[1]] = drawn * math.sqrt(2.0)

    @property
    def state_width(self) -> int:
        """How many numbers an agent remembers; it begins with zeros."""
        return 0 if self.memory is None else self.memory.state_width

    def see(self, rows: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what towers take of (agents, rows, width) rows, one a state, and the states after them."""
        seen = self._features(rows)
        if self.memory is not None and states is not None:
            states = self.memory.step(self.parameters.weights, seen, states)
            seen = states[..., : self.memory.width]
        return self._common(seen), states

    def joined(self, numbers: Tensor, seen: Tensor) -> Tensor:
        """Return what towers take, given (agents, rows, how many) numbers beside what `see` or `recall` has returned."""
        missing = padded(self.beside) - numbers.shape[-1]
        return torch.cat([torch.nn.functional.pad(numbers, (0, missing)), seen], -1)

    def recall(
        self, rows: Tensor, states: Tensor | None, resets: Tensor | None, acted: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Go through (agents, time, batch, width) rows in the order of time, from `states` (agents, batch, state width).

        Where `resets`, (agents, time, batch), is true, an episode begins: its row begins with an empty state. Where `acted`
        is false, an agent looks without remembering, as at the last observation of an episode. Returns what towers take,
        (agents, time x batch, width), and the states at the end. A network without a memory needs no states.
        """
        seen = self._features(rows.flatten(1, 2))
        if self.memory is not None:
            assert states is not None
            assert resets is not None
            by_time = seen.view(*rows.shape[:3], -1)
            seen, states = self.memory.unroll(self.parameters.weights, by_time, states, resets, acted)
            seen = seen.flatten(1, 2)
        return self._common(seen), states

    def unroll(
        self, rows: Tensor, states: Tensor | None, resets: Tensor | None, acted: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Do as `recall`, but return the outputs of all towers: (agents, towers, time, batch, width)."""
        seen, states = self.recall(rows, states, resets, acted)
        return self.towers(seen).view(len(rows), len(self.outputs), *rows.shape[1:3], -1), states

    def __call__(self, rows: Tensor, shares: Tensor | None = None) -> Tensor:
        """Return the outputs of all towers of a network without a memory, as `towers` does."""
        return self.towers(self._common(self._features(rows)), shares)

    def tower(self, seen: Tensor, tower: int) -> Tensor:
        """Return the outputs of one tower for what `see` returned: (agents, rows, width)."""
        return self._layered(seen, tower)

    def towers(self, seen: Tensor, shares: Tensor | None = None) -> Tensor:
        """Return the outputs of all towers for what `see` returned: (agents, towers, rows, width).

        With `shares`, (agents, rows, how many), it is so many quantiles of the outputs of a row, one behind the other.
        """
        agents, towers = seen.shape[0], len(self.outputs)
        if shares is None:
            outputs = self._layered(seen, None)
        else:
            outputs = self._quantiles(seen.repeat_interleave(towers, 0), shares.repeat_interleave(towers, 0))
        return outputs.view(agents, towers, -1, outputs.shape[-1])

    def go_through(self, seen: Tensor) -> Pass:
        """Do as `towers`, for a network that learns: the way back is kept, and costs no automatic differentiation."""
        return Pass(self.parameters, self._activation, seen, self._of_all(detached=True), self._places)

    def _features(self, rows: Tensor) -> Tensor:
        return rows if self._convolutions is None else self._convolutions(self.parameters.weights, rows)

    def _common(self, seen: Tensor) -> Tensor:
        return seen if self._trunk is None else self._trunk(self.parameters.weights, seen)

    def _quantiles(self, rows: Tensor, shares: Tensor) -> Tensor:
        """Return what all towers make of rows and shares."""
        (weights, biases), mixed = self._of_all(), self._mixed
        assert mixed is not None
        if mixed:
            rows = layered(rows, self._activation, weights[:mixed], biases[:mixed])
            rows = torch.relu(rows) if self._activation == "relu" else torch.tanh(rows)
        cosines = self.parameters.merged("weight cosines"), self.parameters.merged("bias cosines")
        return layered(with_shares(rows, shares, *cosines), self._activation, weights[mixed:], biases[mixed:])

    def _layered(self, rows: Tensor, tower: int | None) -> Tensor:
        """Return what the layers of one tower, or of all, make of what is seen."""
        weights, biases = self._of_all() if tower is None or torch.is_grad_enabled() else self._of_tower[tower]
        if tower is not None and torch.is_grad_enabled():
            mine = slice(tower, None, len(self.outputs))
            weights, biases = [one[mine] for one in weights], [one[mine] for one in biases]
        return layered(rows, self._activation, weights, biases)

    def _of_all(self, *, detached: bool = False) -> Layers:
        """Return the weights and biases of all towers, layer by layer."""
        return self._merged() if self._views is None or (torch.is_grad_enabled() and not detached) else self._views

    def _merged(self) -> Layers:
        merged = self.parameters.merged
        return [merged(f"weight {layer}") for layer in self._layers], [
            merged(f"bias {layer}") for layer in self._layers
        ]
