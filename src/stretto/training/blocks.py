"""Blocks: which agents are computed together, and in which parts. Neither changes a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, cycle
from typing import Any

import numpy as np

from stretto.core import AgentId, AgentKind
from stretto.seeding.streams import SeedTree
from stretto.training.learners.base import LearnerBlock


def learner_blocks(
    kinds: Sequence[AgentKind],
    seed: int,
    lanes: int,
    size: int = 8,
    devices: Sequence[str] = ("cpu",),
    *,
    stale: bool = False,
) -> list[LearnerBlock]:
    """Return the blocks of all agents, at most `size` in each. An agent's random numbers follow from its name.

    Blocks are on the first device, the second one and so on, and on the first again.
    """
    root, device = SeedTree(seed).child("learner"), cycle(devices)
    return [
        LearnerBlock(
            agents,
            kind.observation_space,
            kind.action_space,
            tuple(map(root.child, agents)),
            lanes,
            next(device),
            stale,
        )
        for kind in kinds
        for agents in (kind.agents[begin : begin + size] for begin in range(0, len(kind.agents), size))
    ]


def parts_of(block: LearnerBlock, count: int) -> list[LearnerBlock]:
    """Return the agents of a block in so many parts, or in one for each if there are fewer; the first are the larger ones."""
    agents = len(block.agents)
    sizes = [agents // count + (number < agents % count) for number in range(min(count, agents))]
    spans = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    return [replace(block, agents=block.agents[span], trees=block.trees[span]) for span in spans]


def policy_numbers(blocks: Sequence[Sequence[AgentId]], kinds: Sequence[AgentKind]) -> dict[AgentId, int]:
    """Return the number of the block whose policy each agent follows."""
    numbers = {agent: number for number, agents in enumerate(blocks) for agent in agents}
    return {agent: numbers[agent] for kind in kinds for agent in kind.agents}


def joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the states of learners as that of one for all of their agents: whatever they have has an item for each."""
    return {name: _joined([state[name] for state in states]) for name in states[0]}


def _joined(values: list[Any]) -> Any:
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, Mapping):
        return joined(values)
    return np.concatenate(values) if isinstance(first, np.ndarray) else [one for some in values for one in some]


def parted(state: Mapping[str, Any], sizes: Sequence[int]) -> list[Mapping[str, Any]]:
    """Return the states of learners for so many agents each, given that of one for all of them."""
    if len(sizes) == 1:
        return [state]
    return [_some(state, slice(end - size, end)) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _some(value: Any, span: slice) -> Any:
    return {name: _some(part, span) for name, part in value.items()} if isinstance(value, Mapping) else value[span]
