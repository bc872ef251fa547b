"""An episode as a plan, the limits of time under which it is played, and what its slot does: its steps, and its fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.core import Action, AgentId, Outcome
from stretto.errors import PolicyError
from stretto.policies.ahead import NOT_COUNTED, Counted
from stretto.seeding.streams import SeedTree

GRACE_SECONDS = 10.0
"""For how long an answer is waited for after the deadline: transport is not charged, and a busy machine is slow."""

FORFEIT = object()
"""In place of a default action: an agent whose time is used up forfeits the episode."""


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """An episode before it is played: its number, its seed, the options of its reset, and which policy each agent follows.

    `first_row` is the number of its first agent's row in the batches of policies that act for many agents at once; those of
    the others follow (see `AgentEpisode`).
    """

    episode: int
    seed: int
    policies: Mapping[AgentId, int]
    first_row: int = 0
    options: Mapping[str, Any] | None = None

    @property
    def tree(self) -> SeedTree:
        """The root of all random numbers in it."""
        return SeedTree(self.seed)


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long an agent may take for a step, and for how long it may exceed that in an episode, all in all.

    Only time that its policy computes is charged. A step, of the world or of all agents together, that takes longer than
    `hang_seconds` counts as hung, and the process that it is in is ended.
    """

    action_seconds: float | None = None
    overage_seconds: float = 0.0
    hang_seconds: float | None = None

    @property
    def end_seconds(self) -> float | None:
        """After how long a policy is ended, where that can be done: one that is merely slow should answer by then."""
        if self.action_seconds is None:
            return self.hang_seconds
        allowed = self.action_seconds + self.overage_seconds
        if self.hang_seconds is None:
            return allowed + GRACE_SECONDS
        return max(allowed, min(self.hang_seconds, allowed + GRACE_SECONDS))

    def silence_seconds(self, agents: int) -> float | None:
        """Return for how long a worker may show no sign of life while so many agents act in a step."""
        if self.hang_seconds is None:
            return None
        allowed = 0.0 if self.action_seconds is None else agents * (self.action_seconds + self.overage_seconds)
        return max(self.hang_seconds, allowed)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an episode ended without a result; without a policy and an agent it is the world's, or nobody knows whose."""

    error: BaseException
    whose: str
    policy: int | None = None
    agent: AgentId | None = None

    @classmethod
    def of_policies(cls, error: BaseException) -> Fault:
        """Return whose fault it is that policies could not act."""
        if isinstance(error, PolicyError):
            return cls(error, "policy", error.policy, error.agent)
        return cls(error, "policy")


@dataclass(slots=True)
class SlotStep:
    """What a slot did: begin an episode (then there are no `actions`), or one or several steps of it.

    `actions` and `outcome` are those of the last step; observations may be looked at until the generator goes on. `rewards`
    are sums over the steps, `infos` the last of each agent. `overdue` are agents whose time was used up, and `asking` counts
    how agents were asked, where some are asked ahead of their turn. When the episode is `over`, `drawn` are the global
    generators that policies in other processes drew from, although nobody knew that they would; where there is a `fault`,
    there is no outcome.
    """

    slot: int
    plan: EpisodePlan
    steps: int
    actions: Mapping[AgentId, Action] = field(default_factory=dict)
    outcome: Outcome | None = None
    rewards: dict[AgentId, float] = field(default_factory=dict)
    infos: dict[AgentId, Mapping[str, Any]] = field(default_factory=dict)
    over: bool = False
    fault: Fault | None = None
    overdue: list[AgentId] = field(default_factory=list)
    policy_seconds: float = 0.0
    world_seconds: float = 0.0
    drawn: frozenset[str] = frozenset()
    asking: Counted = NOT_COUNTED

    def add(self, outcome: Outcome) -> None:
        """Add what a step gave."""
        rewards = self.rewards
        for agent, reward in outcome.rewards.items():
            rewards[agent] = rewards.get(agent, 0.0) + reward
        self.infos.update(outcome.infos)
