"""What an evaluation keeps of every episode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.core import AgentId


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """Why an episode has no result: what was raised, or that somebody died or hung, and where.

    `reproduce` is a command line that plays the episode again.
    """

    kind: str
    message: str
    policy: str | None
    agent: AgentId | None
    step: int | None
    traceback: str
    reproduce: str


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One episode of one policy (or mix of policies) on one mission.

    Everything but `timing` is a function of the plan: it does not depend on how the episode was computed. `label` names
    what is compared; `policies` says which policy each agent followed. Rewards are sums over the episode. `overdue`
    counts the steps in which an agent struck its deadline and the mission's default action was taken.
    """

    mission: str
    label: str
    episode: int
    seed: int
    steps: int
    rewards: Mapping[AgentId, float]
    policies: Mapping[AgentId, str]
    statistics: Mapping[str, float] = field(default_factory=dict)
    overdue: Mapping[AgentId, int] = field(default_factory=dict)
    failure: EpisodeFailure | None = None
    timing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int]:
        """What identifies the episode within a plan."""
        return self.mission, self.label, self.episode

    @property
    def reward(self) -> float:
        """The mean reward of an agent."""
        return sum(self.rewards.values()) / len(self.rewards) if self.rewards else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return plain values, for a line of `episodes.jsonl`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EpisodeRecord:
        """Return the record that `as_json` was called on."""
        failure = values["failure"]
        return cls(**{**values, "failure": None if failure is None else EpisodeFailure(**failure)})
