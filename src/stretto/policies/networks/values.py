"""Values of actions: what each action is worth by a network, and the policy that takes the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stretto.core import BlockAnswer, BlockPolicy, ChoiceStreams, WorldSpec
from stretto.errors import InvalidSpace
from stretto.policies.networks.branches import branches_of
from stretto.policies.networks.network import Network, NetworkSettings
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array


@dataclass(frozen=True)
class ValueNetworkSettings(NetworkSettings):
    """The shape of a network of values: rectified, with first weights and biases that are drawn evenly."""

    activation: Literal["tanh", "relu"] = "relu"
    initial: Literal["orthogonal", "uniform"] = "uniform"


@dataclass(frozen=True)
class ValueSettings:
    """The shape of a network of action values.

    `dueling` computes the value of a state and the advantages of actions apart. With `quantiles`, a network knows the
    distribution of returns, and so many of its quantiles are averaged wherever a value is needed.
    """

    network: NetworkSettings = field(default_factory=ValueNetworkSettings)
    dueling: bool = False
    quantiles: int | None = None


class ActionValues:
    """The values of all actions for a block of agents, in the order and with the padding of its `branches`."""

    def __init__(
        self,
        trees: Sequence[SeedTree],
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        settings: ValueSettings,
    ) -> None:
        branches = branches_of(action_space)
        if branches is None:
            raise InvalidSpace(
                f"dqn compares the values of single actions, in Discrete, MultiDiscrete or MultiBinary spaces, got "
                f"{action_space}; use ppo"
            )
        self.branches, self.settings = branches, settings
        outputs = (branches.width, 1) if settings.dueling else (branches.width,)
        quantiles = settings.quantiles is not None
        gains = (1.0,) * len(outputs)
        self.network = Network(trees, observation_space, outputs, settings.network, gains, quantiles=quantiles)

    def __call__(self, seen: Tensor, shares: Tensor | None = None) -> Tensor:
        """Return the values for what the network's `see` or `recall` returned: (agents, rows, how many quantiles, width).

        `shares` (agents, rows, how many) says which quantiles. Without, there is one number: the value itself.
        """
        outputs = self.network.towers(seen, shares)
        values = outputs[:, 0, :, : self.branches.width]
        if self.settings.dueling:
            values = self._around(values, outputs[:, 1, :, :1])
        return values.reshape(*seen.shape[:2], -1, values.shape[-1])

    def _around(self, advantages: Tensor, value: Tensor) -> Tensor:
        """Return a value plus how much better than the average action of its branch each action is."""
        parts = zip(self.branches.split(advantages), self.branches.averages, strict=True)
        centred = [part - (part * average).sum(-1, keepdim=True) + value for part, average in parts]
        return centred[0] if len(centred) == 1 else torch.cat(centred, -1)

    def of(self, values: Tensor, picked: Tensor) -> Tensor:
        """Return the values of what was picked in each branch: (agents, rows, how many quantiles, branches)."""
        chosen = picked[:, :, None].expand(-1, -1, values.shape[2], -1)
        parts = self.branches.split(values)
        return torch.cat([part.gather(-1, chosen[..., k : k + 1]) for k, part in enumerate(parts)], -1)

    def means(self, seen: Tensor) -> Tensor:
        """Return the expected value of each action: (agents, rows, width). Quantiles are evenly spread."""
        count = self.settings.quantiles
        if count is None:
            return self(seen).squeeze(2)
        middles = (torch.arange(count) + 0.5) / count
        return self(seen, middles.expand(*seen.shape[:2], count)).mean(2)


class ValuePolicy(BlockPolicy):
    """Takes the action with the highest value, or, with the probability `epsilon`, any action, unless it is `greedy`.

    It says the `memory` that it had before it acted.
    """

    def __init__(self, world: WorldSpec, values: ActionValues, epsilon: float = 0.0, *, greedy: bool = False) -> None:
        super().__init__(world)
        self.values, self.epsilon, self.greedy = values, epsilon, greedy

    @property
    def network(self) -> Network:
        """The network behind the values."""
        return self.values.network

    @classmethod
    def new(cls, world: WorldSpec, trees: Sequence[SeedTree], settings: ValueSettings) -> ValuePolicy:
        """Return a policy whose networks are drawn from the agents' trees."""
        first = world.agents[0]
        return cls(world, ActionValues(trees, world.observation_spaces[first], world.action_spaces[first], settings))

    def description(self) -> dict[str, Any]:
        """Return what `new` needs besides world and trees, as JSON's values."""
        return asdict(self.values.settings)

    @classmethod
    def described(cls, world: WorldSpec, trees: Sequence[SeedTree], description: Mapping[str, Any]) -> ValuePolicy:
        """Return a new policy of a description; it does not explore."""
        network = NetworkSettings.of(description["network"])
        return cls.new(world, trees, ValueSettings(**{**description, "network": network}))

    def state(self) -> dict[str, Array]:
        """Return all that it acts by, as views with a row for each agent."""
        return self.network.parameters.state()

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned; a learner may also say how often to explore, as `epsilon`."""
        self.network.parameters.load_state(state)
        self.epsilon = float(state.get("epsilon", self.epsilon))

    def initial_state(self) -> Any:
        return np.zeros(self.network.state_width, np.float32) if self.network.memory is not None else None

    def step_block(self, observations: Any, states: Any, choices: ChoiceStreams) -> BlockAnswer:
        inputs, branches = self.network.inputs, self.values.branches
        allowed = inputs.allowed(observations)
        with torch.no_grad():
            rows = inputs.rows(observations)
            seen, after = self.network.see(rows, None if states is None else torch.from_numpy(states))
            picked = branches.best(self.values.means(seen), allowed).numpy()
        if self.epsilon > 0 and not self.greedy:
            numbers = choices.uniform(1 + len(branches))
            explores = numbers[..., :1] < self.epsilon
            picked = np.where(explores, branches.anything(numbers[..., 1:], allowed), picked)
        actions = branches.actions(picked)
        if after is None:
            return BlockAnswer(actions, states, {})
        return BlockAnswer(actions, after.numpy(), {"memory": states})
