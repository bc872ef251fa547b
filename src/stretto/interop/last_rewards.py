"""Observations that have the last reward as their last part, for policies that need it, and the same without it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


def without_reward(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of what `public` returns."""
    if isinstance(space, spaces.Box):
        return spaces.Box(space.low[:-1], space.high[:-1], dtype=space.low.dtype.type)
    assert isinstance(space, spaces.Dict)
    rest = {name: part for name, part in space.spaces.items() if name != "reward"}
    return rest["observation"] if len(rest) == 1 else spaces.Dict(rest)


def public(observations: Any) -> Any:
    """Return observations, one or many, as those see them who are given rewards by themselves."""
    if isinstance(observations, np.ndarray):
        return observations[..., :-1]
    rest = {name: part for name, part in observations.items() if name != "reward"}
    return rest["observation"] if len(rest) == 1 else rest


def last_reward_of(observation: Any) -> float:
    """Return the last reward that is shown in an observation."""
    shown = observation if isinstance(observation, np.ndarray) else observation["reward"]
    return float(shown[-1])
