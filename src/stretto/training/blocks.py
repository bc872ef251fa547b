"""Blocks: which agents are computed together. This is a rule on the plan, and changes no result."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core import AgentKind
from stretto.seeding import SeedTree
from stretto.training.learners.base import LearnerBlock


def learner_blocks(
    kinds: Sequence[AgentKind], seed: int, lanes: int, size: int = 8, device: str = "cpu"
) -> list[LearnerBlock]:
    """Return the blocks of all agents, at most `size` in each. An agent's random numbers follow from its name."""
    root = SeedTree(seed).child("learner")
    return [
        LearnerBlock(agents, kind.observation_space, kind.action_space, tuple(map(root.child, agents)), lanes, device)
        for kind in kinds
        for agents in (kind.agents[begin : begin + size] for begin in range(0, len(kind.agents), size))
    ]
