"""What learners of a block have in common: the agents' weights in one array, parts that remember something, and streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.policies.networks.policies import ActorPolicy
from stretto.policies.networks.soft_actors import SoftPolicy
from stretto.policies.networks.values import ValuePolicy
from stretto.spaces import Array
from stretto.training.learners.base import LearnerBlock, Remembers
from stretto.training.learners.bc_settings import BcSettings
from stretto.training.learners.failures import FiniteCheck, LearnerFailure
from stretto.training.learners.ppo_settings import PpoSettings
from stretto.training.optimizer import Adam


class StackedLearner(ABC):
    """Saves and loads what agents have learned. `purpose` is what their streams, one for each, are drawn for."""

    def __init__(self, block: LearnerBlock, policy: ActorPolicy | SoftPolicy | ValuePolicy, purpose: str) -> None:
        self._policy, self._parameters = policy, policy.network.parameters
        self._streams: list[np.random.Generator] = [tree.child(purpose).generator() for tree in block.trees]
        self._check = FiniteCheck(policy)

    @property
    def failures(self) -> Sequence[LearnerFailure]:
        """Which agents could not go on in the last interval, and why."""
        return self._check.failures

    def load_policy(self, state: Mapping[str, Array]) -> None:
        """Begin with the weights of a policy that was learned before."""
        self._policy.load_state(state)

    def acting(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of a `state` a policy acts by: networks, and how observations are normalized."""
        return {**state["network"], **state.get("observations", {})}

    def weights(self) -> list[list[Array]]:
        """Return the weights of each agent."""
        return [[mine.cpu().numpy()] for mine in self._parameters.flat]

    def state(self) -> dict[str, Any]:
        """Return all that it needs to go on as if nothing had happened."""
        parts = {name: dict(part.state()) for name, part in self._remembering()}
        return {**parts, "streams": [stream.bit_generator.state for stream in self._streams]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
        for name, part in self._remembering():
            part.load_state(state[name])
        for stream, mine in zip(self._streams, state["streams"], strict=True):
            stream.bit_generator.state = mine

    def _remembering(self) -> list[tuple[str, Remembers]]:
        return [(name, part) for name, part in self._parts().items() if part is not None]

    @abstractmethod
    def _parts(self) -> Mapping[str, Remembers | None]:
        """Return all that remembers something, by name; `None` for what there is not with these settings."""


def actors_of(block: LearnerBlock, settings: PpoSettings | BcSettings) -> tuple[ActorPolicy, Adam]:
    """Make the actors of a block, where they learn, and what moves their weights."""
    trees = [tree.child("network") for tree in block.trees]
    policy = ActorPolicy.new(block.world, trees, settings.network, normalizes=settings.normalize_observations)
    policy.network.to(block.device)
    return policy, Adam(policy.network.parameters, most_gradient=settings.most_gradient)
