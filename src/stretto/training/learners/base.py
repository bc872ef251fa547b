"""What a learner is: it acts for a block of agents, learns from what they saw, and can be saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gymnasium import spaces

from stretto.core import AgentId, BlockPolicy, WorldSpec
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array
from stretto.storage.block import Block

if TYPE_CHECKING:
    from stretto.storage.of_layout import AnyLayout
    from stretto.training.learners.failures import LearnerFailure

Metrics = dict[str, float]


@dataclass(frozen=True)
class LearnerBlock:
    """For whom a learner learns: agents with equal spaces, each with the root of its random numbers.

    `lanes` is the number of environments, `device` where networks compute.
    """

    agents: tuple[AgentId, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    trees: tuple[SeedTree, ...]
    lanes: int
    device: str = "cpu"

    @property
    def world(self) -> WorldSpec:
        """What a policy for these agents knows of the world."""
        return WorldSpec(
            self.agents,
            dict.fromkeys(self.agents, self.observation_space),
            dict.fromkeys(self.agents, self.action_space),
        )

    def storage(self, extras: Mapping[str, tuple[tuple[int, ...], Any]] | None = None) -> Block:
        """Return how the experience of these agents is stored."""
        return Block(self.agents, self.observation_space, self.action_space, self.lanes, extras or {})


class Remembers(Protocol):
    """A part of a learner that remembers something: arrays by name, as views."""

    def state(self) -> Mapping[str, Array]: ...

    def load_state(self, state: Mapping[str, Array]) -> None: ...


class Learner(Protocol):
    """Learns for a block of agents, each from its own experience alone.

    `policy` acts with the weights as they are now. `layout` says what is kept of all that the agents see. The buffer belongs
    to whoever runs the learner, perhaps in another process: a learner looks at nothing but the snapshots that it is given.
    """

    policy: BlockPolicy
    layout: AnyLayout

    @property
    def failures(self) -> Sequence[LearnerFailure]:
        """Which agents could not go on in the last interval, and why: they are as they were before it."""

    def learn(self, seen: Any, progress: float, learning: Array | None = None) -> Sequence[Metrics]:
        """Learn from a snapshot of the buffer; return figures for each agent.

        `progress` is the share of the run so far. Agents that are not `learning` stay as they are; `None`: all learn.
        """

    def acting(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what of a learner's `state` a policy acts by: what the `load_state` of one takes."""

    def weights(self) -> list[list[Array]]:
        """Return what each agent has learned: the arrays that its policy depends on."""

    def load_policy(self, state: Mapping[str, Array]) -> None:
        """Begin with a policy that was learned before: what its `state` has returned."""

    def state(self) -> Mapping[str, Any]:
        """Return all that it needs to go on as if nothing had happened: arrays, JSON's values, and dicts of them."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
