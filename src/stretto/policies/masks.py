"""Action masks: which actions are allowed, where a world shows that in its observations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.core import Action, Observation
from stretto.spaces import Array, Leaf, leaves

ACTION_MASK = "action_mask"
"""The part of a Dict observation that has a 1 for each action that is allowed."""


def mask_among(parts: Iterable[Leaf]) -> Leaf | None:
    """Return the part of an observation that is the action mask, if it has one."""
    return next((leaf for leaf in parts if leaf.path == (ACTION_MASK,)), None)


@dataclass(frozen=True, slots=True)
class MaskedChoices:
    """The choices of an agent that is shown a mask: one for a Discrete space, several for a MultiDiscrete one.

    A mask has the actions of all choices one behind the other. Where it allows none of a choice, as for agents that cannot
    act, all are allowed.
    """

    mask: Leaf
    space: spaces.Discrete | spaces.MultiDiscrete

    @classmethod
    def of(cls, seen: spaces.Space[Any], acted: spaces.Space[Any]) -> MaskedChoices | None:
        """Return the choices of an agent; `None` if it is shown no mask, or one that fits no such choices."""
        mask = mask_among(leaves(seen))
        if mask is None or type(acted) not in {spaces.Discrete, spaces.MultiDiscrete}:
            return None
        choices = cls(mask, acted)  # type: ignore[arg-type]
        return choices if mask.shape == (sum(choices._sizes()),) else None

    def _sizes(self) -> list[int]:
        space = self.space
        return [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.reshape(-1).tolist()

    def allowed(self, observation: Observation) -> list[Array]:
        """Return which numbers each choice may pick, counted from 0."""
        mask, found, first = np.asarray(self.mask.get(observation)) != 0, [], 0
        for size in self._sizes():
            mine = np.flatnonzero(mask[first : first + size])
            found.append(mine if mine.size else np.arange(size))
            first += size
        return found

    def action(self, picked: Sequence[int]) -> Action:
        """Return the action that picks these numbers."""
        return counted_action(self.space, picked)


def counted_action(space: Any, picked: Sequence[int]) -> Action:
    """Return the action of a Discrete or MultiDiscrete space that picks these numbers, counted from 0."""
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(int(space.start) + picked[0])
    return (space.start + np.array(picked).reshape(space.shape)).astype(space.dtype)
