"""Soft actors: policies and action values for actions that are numbers, as soft actor-critic learns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stretto.core import BlockAnswer, BlockPolicy, ChoiceStreams, WorldSpec
from stretto.policies.networks.network import Network, NetworkSettings
from stretto.policies.networks.squashed import Squashed
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array

CRITICS = 2


@dataclass(frozen=True)
class SoftNetworkSettings(NetworkSettings):
    """The shape of actor and critics: rectified, with first weights and biases that are drawn evenly."""

    widths: tuple[int, ...] = (256, 256)
    activation: Literal["tanh", "relu"] = "relu"
    initial: Literal["orthogonal", "uniform"] = "uniform"


def critics_of(
    trees: Sequence[SeedTree], world: WorldSpec, settings: NetworkSettings, name: str = "critics"
) -> Network:
    """Return two critics for each agent: towers that see an action beside what is seen."""
    first = world.agents[0]
    count = Squashed(world.action_spaces[first]).count
    own = [tree.child(name) for tree in trees]
    return Network(own, world.observation_spaces[first], (1,) * CRITICS, settings, (1.0,) * CRITICS, beside=count)


class SoftPolicy(BlockPolicy):
    """Draws actions around what the actor says, or takes those in the middle if it is `greedy`.

    The actor sees what the critics' convolutions, memory and shared layers make of an observation (`body`). Agents that are
    not `begun` take any action instead, all equally likely. It says the `memory` that it had before it acted.
    """

    def __init__(
        self, world: WorldSpec, actor: Network, body: Network, head: Squashed, *, greedy: bool = False
    ) -> None:
        super().__init__(world)
        self.network, self.body, self.head, self.greedy = actor, body, head, greedy
        self.begun = np.ones(len(world.agents), np.bool_)

    @property
    def networks(self) -> list[Network]:
        """All networks that learn."""
        return [self.network, self.body]

    @classmethod
    def new(cls, world: WorldSpec, trees: Sequence[SeedTree], settings: NetworkSettings) -> SoftPolicy:
        """Return a policy whose networks are drawn from the agents' trees."""
        body = critics_of(trees, world, settings)
        head = Squashed(world.action_spaces[world.agents[0]])
        own = NetworkSettings(settings.widths[settings.shared_layers :], settings.activation, initial=settings.initial)
        seen = spaces.Box(-np.inf, np.inf, (body.seen_size,), np.float32)
        actor = Network([tree.child("actor") for tree in trees], seen, (head.width,), own, (1.0,))
        return cls(world, actor, body, head)

    def description(self) -> dict[str, Any]:
        """Return what `new` needs besides world and trees, as JSON's values."""
        return asdict(self.body.settings)

    @classmethod
    def described(cls, world: WorldSpec, trees: Sequence[SeedTree], description: Mapping[str, Any]) -> SoftPolicy:
        """Return a new policy of a description."""
        return cls.new(world, trees, NetworkSettings.of(description))

    def state(self) -> dict[str, Array]:
        """Return all that it acts by, as views with a row for each agent."""
        shared = self.body.parameters.flat_shared.numpy()
        body = {"body": shared} if shared.size else {}
        return {"actor": self.network.parameters.flat.numpy(), "begun": self.begun, **body}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        for name, mine in self.state().items():
            mine[...] = state[name]

    def initial_state(self) -> Any:
        return np.zeros(self.body.state_width, np.float32) if self.body.memory is not None else None

    def sees(self, seen: Tensor) -> Tensor:
        """Return what the actor takes of what the body has seen; nothing that the actor learns changes the body."""
        width = self.network.inputs.width
        return seen.detach() if seen.shape[-1] == width else seen.detach()[..., :width]

    def step_block(self, observations: Any, states: Any, choices: ChoiceStreams) -> BlockAnswer:
        with torch.no_grad():
            rows = self.body.inputs.rows(observations)
            seen, after = self.body.see(rows, None if states is None else torch.from_numpy(states))
            outputs = self.network.tower(self.sees(seen), 0)
        numbers = self.head.choose(outputs, None if self.greedy else choices)
        if not self.greedy and not self.begun.all():
            numbers = np.where(self.begun[:, None, None], numbers, self.head.anything(choices))
        actions = self.head.bounded(numbers)
        if after is None:
            return BlockAnswer(actions, states, {})
        return BlockAnswer(actions, after.numpy(), {"memory": states})
