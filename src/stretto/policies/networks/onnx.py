"""ONNX: what one agent has learned, as a file that other programs run without Stretto and without torch."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from stretto.core import AgentId
from stretto.policies.networks.branches import branches_of
from stretto.policies.networks.heads import Gaussian
from stretto.policies.networks.policies import ActorPolicy
from stretto.policies.networks.soft_actors import SoftPolicy
from stretto.policies.networks.squashed import Squashed
from stretto.policies.networks.values import ValuePolicy
from stretto.policies.onnx_file import ACTION, NEXT_STATE, STATE
from stretto.spaces import Array, Leaf

BATCH = "batch"


def export_onnx(policy: ActorPolicy | SoftPolicy | ValuePolicy, agent: AgentId, path: str | Path) -> None:
    """Write what an agent takes for its best action; needs the packages `onnx` and `onnxscript`.

    The inputs are the parts of an observation as the world gives them, with an axis of rows in front: `observation`, or
    `observation.` and the keys of a Dict or Tuple. The output is `action`. An agent with a memory also has the input `state`
    and the output `next_state`, (rows, width); zeros begin an episode.
    """
    module = _OneAgent(policy, policy.world.agents.index(agent))
    rows = torch.export.Dim(BATCH, min=1)
    seen = [_example(leaf) for leaf in module.seen]
    names = [".".join(map(str, ("observation", *leaf.path))) for leaf in module.seen]
    shapes: list[Any] = [{0: rows} for _ in seen]
    outputs = [ACTION]
    if module.state_width:
        seen.append(torch.zeros(2, module.state_width))
        names.append(STATE)
        shapes.append({0: rows})
        outputs.append(NEXT_STATE)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about parts of torch that it looks at on its way
        torch.onnx.export(
            module,
            tuple(seen),
            str(path),
            input_names=names,
            output_names=outputs,
            dynamic_shapes=(tuple(shapes),),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


class _OneAgent(torch.nn.Module):
    """From the parts of observations to actions, in torch's functions alone."""

    def __init__(self, policy: ActorPolicy | SoftPolicy | ValuePolicy, agent: int) -> None:
        super().__init__()
        one = slice(agent, agent + 1)
        name = policy.world.agents[agent]
        self._space = policy.world.action_spaces[name]
        self._network = (policy.body if isinstance(policy, SoftPolicy) else policy.network).part(one)
        self._network.to("cpu")
        self._inputs, self.state_width = self._network.inputs, self._network.state_width
        self.seen = [*self._inputs.leaves, *([] if self._inputs.mask is None else [self._inputs.mask])]
        self._normalizer = self._values = self._actor = None
        self._head: Any = None
        if isinstance(policy, ValuePolicy):
            self._values = copy.copy(policy.values)
            self._values.network = self._network
        elif isinstance(policy, SoftPolicy):
            self._head, self._actor = policy.head, policy.network.part(one)
        else:
            self._head = policy.head
            self._normalizer = None if policy.normalizer is None else policy.normalizer.part(one)

    def forward(self, *seen: Tensor) -> tuple[Tensor, ...]:
        parts = [_numbers(leaf, one) for leaf, one in zip(self._inputs.leaves, seen, strict=False)]
        count, inputs = len(self._inputs.leaves), self._inputs
        plain = parts[: count - len(inputs.images)]
        if plain:
            numbers = functional.pad(torch.cat(plain, -1), (0, inputs.numbers - inputs.size))
            if inputs.weights is not None:
                numbers = numbers * _constant(inputs.weights)
            rows = torch.cat([numbers, *parts[len(plain) :]], -1)[None]
        else:
            rows = torch.cat(parts, -1)[None]
        allowed = None if inputs.mask is None else (seen[count] != 0).flatten(1)[None]
        if self._normalizer is not None:
            rows = self._normalizer(rows)
        shown, states = self._network.see(rows, seen[-1][None] if self.state_width else None)
        if self._values is not None:
            outputs = self._values.means(shown)
        elif self._actor is not None:
            outputs = self._actor.tower(shown[..., : self._actor.inputs.width], 0)
        else:
            outputs = self._network.tower(shown, 0)
        action = self._action(outputs, allowed)[0]
        return (action,) if states is None else (action, states[0])

    def _action(self, outputs: Tensor, allowed: Tensor | None) -> Tensor:
        """Return the best action: (1, rows, ...)."""
        shape: Any = self._space.shape
        branches = branches_of(self._space)
        if branches is not None:
            picked = branches.best(outputs, allowed) + torch.from_numpy(branches.starts)
            return picked.reshape(*picked.shape[:2], *shape)
        assert isinstance(self._head, (Gaussian, Squashed))
        assert isinstance(self._space, spaces.Box)
        means = outputs[..., : self._head.count].reshape(*outputs.shape[:2], *shape)
        if isinstance(self._head, Squashed):
            means = means.tanh()
        half, middle = (_constant(np.reshape(one, shape)) for one in (self._head.half, self._head.middle))
        scaled = means * half + middle
        return scaled.clamp(_constant(self._space.low), _constant(self._space.high))


def _constant(array: Array) -> Tensor:
    return torch.from_numpy(np.asarray(array, np.float32))


def _example(leaf: Leaf) -> Tensor:
    """Return two values of a leaf, for shapes and types alone."""
    start = leaf.space.start if isinstance(leaf.space, (spaces.Discrete, spaces.MultiDiscrete)) else 0
    return torch.from_numpy(np.zeros((2, *leaf.shape), leaf.dtype) + np.asarray(start, leaf.dtype))


def _numbers(leaf: Leaf, values: Tensor) -> Tensor:
    """Return what `Inputs.rows` writes for values of a leaf: (rows, size)."""
    space = leaf.space
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec.reshape(-1)).tolist()
        starts = np.broadcast_to(np.asarray(space.start).reshape(-1), len(sizes)).tolist()
        columns = (values.flatten(1) if leaf.shape else values[:, None]).unbind(1)
        codes = [
            (column[:, None] - start == torch.arange(size)).float()
            for column, size, start in zip(columns, sizes, starts, strict=True)
        ]
        return torch.cat(codes, -1)
    flat = values.flatten(1)
    scaled = values.dtype == torch.uint8 and not isinstance(space, spaces.MultiBinary)
    return flat.float() / 255.0 if scaled else flat.float()
