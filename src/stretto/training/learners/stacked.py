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
from stretto.training.learners.failures import FiniteCheck, LearnerFailure


class StackedLearner(ABC):
    """Saves and loads what agents have learned. `purpose` is what their streams, one for each, are drawn for."""

    def __init__(self, block: LearnerBlock, policy: ActorPolicy | SoftPolicy | ValuePolicy, purpose: str) -> None:
        self._parameters = policy.network.parameters
        self._streams: list[np.random.Generator] = [tree.child(purpose).generator() for tree in block.trees]
        self._check = FiniteCheck(policy)

    @property
    def failures(self) -> Sequence[LearnerFailure]:
        """Which agents could not go on in the last interval, and why."""
        return self._check.failures

    def acting(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of a `state` a policy acts by: networks, and how observations are normalized."""
        return {**state["network"], **state.get("observations", {})}

    def weights(self) -> list[list[Array]]:
        """Return the weights of each agent."""
        return [[mine.cpu().numpy()] for mine in self._parameters.flat]

    def state(self) -> dict[str, Any]:
        """Return all that it needs to go on as if nothing had happened."""
        parts = {name: dict(part.state()) for name, part in self._parts().items()}
        return {**parts, "streams": [stream.bit_generator.state for stream in self._streams]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
        for name, part in self._parts().items():
            part.load_state(state[name])
        for stream, mine in zip(self._streams, state["streams"], strict=True):
            stream.bit_generator.state = mine

    @abstractmethod
    def _parts(self) -> Mapping[str, Remembers]:
        """Return all that remembers something, by name."""
