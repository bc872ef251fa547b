"""Whether an action is one at all: told before a world stumbles over it, so that the right one is blamed."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


def complaint(space: spaces.Space[Any], action: Any) -> str | None:
    """Say what is wrong with an action, if that is certain.

    Bounds of real numbers are left to the world, since most clip; and so is what we know nothing about.
    """
    match space:
        case spaces.Discrete():
            return None if _is_choice(space, action) else f"must be in {space}, got {_short(action)}"
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return _wrong_array(space, action)
        case _:
            return f"must be in {space}, got None" if action is None else None


def _is_choice(space: spaces.Discrete[Any], action: Any) -> bool:
    value = action.item() if isinstance(action, np.ndarray) and action.size == 1 else action
    if not isinstance(value, (int, np.integer, np.bool_)):
        return isinstance(value, (float, np.floating)) and float(value).is_integer() and _within(space, int(value))
    return _within(space, int(value))


def _within(space: spaces.Discrete[Any], value: int) -> bool:
    return int(space.start) <= value < int(space.start) + int(space.n)


def _wrong_array(space: spaces.Space[Any], action: Any) -> str | None:
    try:
        array = np.asarray(action, dtype=np.float64)
    except (TypeError, ValueError):
        return f"must be numbers of shape {space.shape}, got {_short(action)}"
    if array.shape != space.shape:
        return f"must have shape {space.shape}, got shape {array.shape}"
    if np.isnan(array).any():
        return f"must be numbers, got NaN in {_short(action)}"
    if isinstance(space, spaces.MultiDiscrete):
        low = np.asarray(space.start, np.float64)
        if ((array < low) | (array >= low + np.asarray(space.nvec, np.float64))).any():
            return f"must be in {space}, got {_short(action)}"
    return None


def _short(action: Any) -> str:
    text = " ".join(repr(action).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
