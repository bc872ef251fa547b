"""Blocks: which agents are computed together. This is a rule on the plan, and changes no result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from stretto.core import AgentKind
from stretto.seeding import SeedTree
from stretto.training.learners.base import LearnerBlock


def learner_blocks(
    kinds: Sequence[AgentKind], seed: int, lanes: int, size: int = 8, devices: Sequence[str] = ("cpu",)
) -> list[LearnerBlock]:
    """Return the blocks of all agents, at most `size` in each. An agent's random numbers follow from its name.

    Blocks are on the first device, the second one and so on, and on the first again.
    """
    root, device = SeedTree(seed).child("learner"), cycle(devices)
    return [
        LearnerBlock(
            agents, kind.observation_space, kind.action_space, tuple(map(root.child, agents)), lanes, next(device)
        )
        for kind in kinds
        for agents in (kind.agents[begin : begin + size] for begin in range(0, len(kind.agents), size))
    ]
