"""Neural: a small recurrent network as a policy, whose every row is computed as if it were alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from stretto.budget import NativeThreads
from stretto.core import Action, AgentId, AgentPolicy, MultiAgentPolicy, Observation, WorldSpec
from stretto.errors import InvalidSpace, UsageError
from stretto.policies.torch_settings import check_device, torch_installed
from stretto.safetensors import read_safetensors
from stretto.seeding.streams import SeedTree
from stretto.spaces import leaves, map_space

VECTOR = 8
"""Every width is a multiple of this, with zeros behind what counts: whole vectors of the CPU. Then none of a row's elements
is left over for the scalar code, whose last bits may differ."""

HIDDEN = 4 * VECTOR
"""The width of the hidden state."""

MOST_TERMS = 1 << 20
"""How many products are held at once: 4 MB."""

Floats = NDArray[np.float32]

_ONE_THREAD = NativeThreads(1)


class Neural(MultiAgentPolicy):
    """An encoder (linear, tanh), a GRU cell and a linear head, shared by all agents; each has a hidden state of its own.

    Weights are drawn from `seed`, or loaded from a safetensors file with the names and shapes of `shapes`: those that
    `torch.nn.Linear` and `torch.nn.GRUCell` give them. Where agents differ in their spaces, the widest ones count:
    shorter observations end with zeros, and an agent uses as many of the outputs as it needs.

    Actions are drawn with the agent's generator, or are the best ones if `deterministic`. For a Box the outputs are
    means, and `noise` is the standard deviation; -1 and 1 stand for the bounds where there are two. The network is
    computed on `device`; hidden states and draws stay in the memory of the process.
    """

    rows_interchangeable = True

    def __init__(
        self,
        world: WorldSpec,
        *,
        seed: int = 0,
        deterministic: bool = False,
        noise: float = 0.3,
        device: str = "cpu",
    ) -> None:
        super().__init__(world)
        if not torch_installed():
            raise UsageError("neural needs torch, which is not installed; run pip install 'stretto[train]'")
        check_device(device)
        self.deterministic, self.noise, self.device = deterministic, noise, device
        inputs = max(1, *(_input_width(space) for space in world.observation_spaces.values()))
        outputs = max(_output_width(space) for space in world.action_spaces.values())
        self.shapes: dict[str, tuple[int, ...]] = {
            "encoder.weight": (HIDDEN, inputs),
            "encoder.bias": (HIDDEN,),
            "gru.weight_ih": (3 * HIDDEN, HIDDEN),
            "gru.weight_hh": (3 * HIDDEN, HIDDEN),
            "gru.bias_ih": (3 * HIDDEN,),
            "gru.bias_hh": (3 * HIDDEN,),
            "head.weight": (outputs, HIDDEN),
            "head.bias": (outputs,),
        }
        self._inputs = inputs
        self._use({name: self._drawn(name, seed) for name in self.shapes})

    def _drawn(self, name: str, seed: int) -> Floats:
        width = self._inputs if name.startswith("encoder") else HIDDEN
        generator = SeedTree(seed).child("neural", name).generator()
        return generator.uniform(-1, 1, self.shapes[name]).astype(np.float32) / np.float32(math.sqrt(max(1, width)))

    def load(self, path: str) -> None:
        """Take the weights of a safetensors file."""
        weights = read_safetensors(path)
        found = {name: values.shape for name, values in weights.items()}
        if found != self.shapes:
            wrong = sorted(name for name in found | self.shapes if found.get(name) != self.shapes.get(name))
            differences = ", ".join(
                f"{name} {found.get(name, 'missing')}, not {self.shapes.get(name, 'there')}" for name in wrong
            )
            raise UsageError(f"weights must have the shapes that the world's spaces give, got {differences} in {path}")
        if broken := [name for name, values in weights.items() if values.dtype != np.float32]:
            raise UsageError(f"weights must be of F32, got others in {', '.join(broken)} of {path}; convert them")
        if broken := [name for name, values in weights.items() if not np.isfinite(values).all()]:
            raise UsageError(f"weights must be finite, got others in {', '.join(broken)} of {path}; train them again")
        self._use(weights)

    def _use(self, weights: Mapping[str, Floats]) -> None:
        import torch

        # Columns first: each input's weights lie together, next to those of the other outputs.
        self._weights = {
            name: torch.from_numpy(np.ascontiguousarray(_padded(values).T)).to(self.device)
            for name, values in weights.items()
        }

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        return NeuralAgent(self, self.world.observation_spaces[agent], self.world.action_spaces[agent])

    def step_batch(self, agent_policies: Sequence[NeuralAgent], observations: Sequence[Observation]) -> list[Action]:
        """Choose for many agents at once; what one of them does never depends on the others."""
        inputs = np.zeros((len(agent_policies), _whole(self._inputs)), np.float32)
        for row, agent, observation in zip(inputs, agent_policies, observations, strict=True):
            flat = np.asarray(spaces.flatten(agent.observation_space, observation))
            row[: len(flat)] = flat
        hidden, outputs = self._forward(inputs, np.stack([agent.hidden for agent in agent_policies]))
        return [agent.choose(*rows) for agent, *rows in zip(agent_policies, hidden, outputs, strict=True)]

    def _forward(self, inputs: Floats, hidden: Floats) -> tuple[Floats, Floats]:
        import torch

        with torch.no_grad(), _ONE_THREAD.capped():
            before = torch.from_numpy(hidden).to(self.device)
            seen = torch.from_numpy(inputs).to(self.device)
            encoded = torch.tanh(self._linear(seen, "encoder.weight", "encoder.bias"))
            given = self._linear(encoded, "gru.weight_ih", "gru.bias_ih").chunk(3, dim=1)
            kept = self._linear(before, "gru.weight_hh", "gru.bias_hh").chunk(3, dim=1)
            reset, update = torch.sigmoid(given[0] + kept[0]), torch.sigmoid(given[1] + kept[1])
            proposed = torch.tanh(given[2] + reset * kept[2])
            after = proposed + update * (before - proposed)
            return after.cpu().numpy(), self._linear(after, "head.weight", "head.bias").cpu().numpy()

    def _linear(self, rows: Any, weight: str, bias: str) -> Any:
        """Multiply by a matrix, with single products and sums in an order that the number of inputs alone decides.

        A library's matrix product may sum the first rows of a batch in another order than the last ones: with 147
        inputs, the same row twice gave two results. Here the size of the batch does not matter either.
        """
        import torch

        columns = self._weights[weight]
        parts = rows.split(max(1, MOST_TERMS // columns.numel()))
        if len(parts) > 1:
            return torch.cat([self._linear(part, weight, bias) for part in parts])
        terms = rows.T.contiguous().unsqueeze(2) * columns.unsqueeze(1)
        count = len(columns)
        while count > 1:
            half = count // 2
            terms[:half].add_(terms[count - half : count])
            count -= half
        return terms[0] + self._weights[bias]


class NeuralAgent(AgentPolicy):
    """One agent in one episode: its hidden state, and its draws."""

    def __init__(self, policy: Neural, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self._policy = policy
        self.observation_space, self.action_space = observation_space, action_space
        self._outputs = _output_width(action_space)
        self.hidden = np.zeros(HIDDEN, np.float32)

    def reset(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.hidden = np.zeros(HIDDEN, np.float32)

    def step(self, observation: Observation) -> Action:
        return self._policy.step_batch([self], [observation])[0]

    def snapshot(self) -> Floats:
        """Return the hidden state, which nobody writes into: every step has a new one."""
        return self.hidden

    def restore(self, snapshot: Floats) -> None:
        """Go back to a hidden state."""
        self.hidden = snapshot

    def choose(self, hidden: Floats, outputs: Floats) -> Action:
        """Keep the new hidden state, and turn the network's outputs into an action."""
        self.hidden = hidden
        rng = None if self._policy.deterministic else self.rng
        return _action(self.action_space, outputs[: self._outputs], rng, self._policy.noise)


def _whole(width: int) -> int:
    return -(-width // VECTOR) * VECTOR


def _padded(values: Floats) -> Floats:
    """Return an array with zeros behind it on every axis, up to whole vectors."""
    return np.pad(values, [(0, _whole(width) - width) for width in values.shape])


# --- from outputs to actions ----------------------------------------------------------------------------------


def _input_width(space: spaces.Space[Any]) -> int:
    if not space.is_np_flattenable:
        raise InvalidSpace(f"neural plays where observations can be flattened, got {space}; choose another policy")
    return spaces.flatdim(space)


def _output_width(space: spaces.Space[Any]) -> int:
    return sum(_part_width(leaf.space) for leaf in leaves(space))


def _part_width(space: spaces.Space[Any]) -> int:
    match space:
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(space.nvec.sum())
        case spaces.MultiBinary() | spaces.Box():
            return math.prod(space.shape)
        case _:
            raise InvalidSpace(
                f"neural plays where actions are Discrete, MultiDiscrete, MultiBinary, Box, Dict or Tuple, "
                f"got {space}; choose another policy"
            )


def _action(space: spaces.Space[Any], outputs: Floats, rng: np.random.Generator | None, noise: float) -> Action:
    """Return an action; without a generator the best one. Logits with Gumbel noise are largest as their softmax says."""
    used = 0

    def act_part(part: spaces.Space[Any]) -> Action:
        nonlocal used
        first, used = used, used + _part_width(part)
        return _part_action(part, outputs[first:used], rng, noise)

    return map_space(act_part, space)


def _part_action(space: spaces.Space[Any], outputs: Floats, rng: np.random.Generator | None, noise: float) -> Action:
    match space:
        case spaces.Discrete():
            return space.start + space.dtype.type(_category(outputs, rng))
        case spaces.MultiDiscrete():
            ends = np.cumsum(space.nvec.ravel())[:-1]
            numbers = [_category(logits, rng) for logits in np.split(outputs, ends)]
            return (space.start + np.reshape(numbers, space.nvec.shape)).astype(space.dtype)
        case spaces.MultiBinary():
            logits = outputs if rng is None else outputs + rng.logistic(size=outputs.shape)
            return (logits > 0).astype(np.int8).reshape(space.shape)
        case spaces.Box():
            return _point(space, outputs if rng is None else outputs + noise * rng.standard_normal(outputs.shape))
        case _:
            raise AssertionError(f"refused before: {space}")


def _category(logits: Floats, rng: np.random.Generator | None) -> int:
    return int(np.argmax(logits if rng is None else logits + rng.gumbel(size=logits.shape)))


def _point(space: spaces.Box, outputs: NDArray[Any]) -> NDArray[Any]:
    values = outputs.astype(np.float64).reshape(space.shape)
    both = space.bounded_below & space.bounded_above
    low, high = (np.where(both, bound, 0).astype(np.float64) for bound in (space.low, space.high))
    share = (np.clip(values, -1, 1) + 1) / 2
    values = np.where(both, low * (1 - share) + high * share, values)
    if space.dtype.kind != "f":
        values = np.rint(values)
    # Once more as the space's own type: not every bound of 64 bits is a float.
    return np.asarray(np.clip(np.clip(values, space.low, space.high).astype(space.dtype), space.low, space.high))
