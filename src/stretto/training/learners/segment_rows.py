"""The rows of a segment by agent, as networks take them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stretto.policies.networks.inputs import Inputs
from stretto.spaces import Array, map_space
from stretto.storage.segments import SegmentSnapshot
from stretto.training.learners.base import LearnerBlock


def rows_seen(block: LearnerBlock, inputs: Inputs, seen: SegmentSnapshot) -> tuple[Tensor, Tensor | None]:
    """Return all that was seen, with what follows, as (agents, rows, width), and which actions were allowed."""
    both = map_space(
        lambda _, part, after: np.concatenate([part, after[None]]),
        block.observation_space,
        seen.observations,
        seen.next_observations,
    )
    allowed = inputs.allowed(seen.observations)
    rows = inputs.rows(both).permute(2, 0, 1, 3).reshape(len(block.agents), -1, inputs.width)
    return rows, None if allowed is None else torch.from_numpy(by_agent(allowed))


def by_agent(array: Array) -> Array:
    """Return (rows, lanes, agents, ...) as (agents, rows x lanes, ...)."""
    moved = np.moveaxis(array, 2, 0)
    return np.ascontiguousarray(moved).reshape(moved.shape[0], -1, *moved.shape[3:])
