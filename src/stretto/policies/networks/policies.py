"""Policies that were learned: networks that choose for a block of agents in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from stretto.core import BlockAnswer, BlockPolicy, ChoiceStreams, WorldSpec
from stretto.policies.networks.heads import Head, head_of
from stretto.policies.networks.network import Network, NetworkSettings
from stretto.policies.networks.normalizer import Normalizer
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array


class ActorPolicy(BlockPolicy):
    """Draws actions from what the first tower of a network says, or takes the most likely ones if it is `greedy`.

    It says what it has `drawn` where the world takes something else, and the `memory` that it had before it acted; and the
    `likelihood` of what it does, its logarithm, if it `says_likelihood`.
    """

    says_likelihood = False

    def __init__(
        self,
        world: WorldSpec,
        network: Network,
        head: Head,
        normalizer: Normalizer | None = None,
        *,
        greedy: bool = False,
    ) -> None:
        super().__init__(world)
        self.network, self.head, self.normalizer, self.greedy = network, head, normalizer, greedy

    @classmethod
    def new(
        cls, world: WorldSpec, trees: Sequence[SeedTree], settings: NetworkSettings, *, normalizes: bool
    ) -> ActorPolicy:
        """Return a policy whose networks, an actor and a critic for each agent, are drawn from the agents' trees."""
        first = world.agents[0]
        space, head = world.observation_spaces[first], head_of(world.action_spaces[first])
        network = Network(trees, space, (head.width, 1), settings, (0.01, 1.0), head.scales)
        numbers, weights = network.inputs.numbers, network.inputs.weights
        normalizer = Normalizer(len(trees), numbers, weights) if normalizes and numbers else None
        return cls(world, network, head, normalizer)

    def description(self) -> dict[str, Any]:
        """Return what `new` needs besides world and trees, as JSON's values."""
        return {"settings": asdict(self.network.settings), "normalizes": self.normalizer is not None}

    @classmethod
    def described(cls, world: WorldSpec, trees: Sequence[SeedTree], description: Mapping[str, Any]) -> ActorPolicy:
        """Return a new policy of a description."""
        settings = NetworkSettings.of(description["settings"])
        return cls.new(world, trees, settings, normalizes=description["normalizes"])

    def state(self) -> dict[str, Array]:
        """Return all that it acts by, as views with a row for each agent."""
        return self.network.parameters.state() | ({} if self.normalizer is None else self.normalizer.state())

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""
        self.network.parameters.load_state(state)
        if self.normalizer is not None:
            self.normalizer.load_state({name: state[name] for name in self.normalizer.state()})

    def initial_state(self) -> Any:
        return np.zeros(self.network.state_width, np.float32) if self.network.memory is not None else None

    def step_block(self, observations: Any, states: Any, choices: ChoiceStreams) -> BlockAnswer:
        network = self.network
        with torch.no_grad():
            rows = network.inputs.rows(observations)
            if self.normalizer is not None:
                rows = self.normalizer(rows)
            device = network.device
            before = None if states is None else torch.from_numpy(states).to(device)
            seen, after = network.see(rows.to(device), before)
            outputs = network.tower(seen, 0).cpu()
            allowed = network.inputs.allowed(observations)
            drawn = self.head.choose(outputs, network.scales.cpu(), None if self.greedy else choices, allowed)
            said: dict[str, Array] = {}
            if self.says_likelihood:
                mask = None if allowed is None else torch.from_numpy(allowed)
                scored = self.head.score(outputs, network.scales.cpu(), torch.from_numpy(drawn), mask)
                said["likelihood"] = scored.likelihoods.numpy()
        actions = self.head.bounded(drawn)
        says = said if actions is drawn else said | {"drawn": drawn}
        if after is None:
            return BlockAnswer(actions, states, says)
        return BlockAnswer(actions, after.cpu().numpy(), says | {"memory": states})
