"""Outputs: whether what a world returns is what its spaces promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.errors import InvalidOutput, Place
from stretto.spaces import Leaf, SpaceLayout

FIRST_STEPS = 8
"""How many calls of each slot `checks="first"` looks at.

Later ones are written as numpy converts them: a `None` in a list becomes NaN. An observation, or a part of one, that is
`None` itself or has another shape is refused at any time: looking costs nothing that could be measured.
"""


Look = Callable[[Any], bool]
"""Whether what a step gave can be seen at a glance to be as it should; most is."""


def plainly_right(layout: SpaceLayout) -> Look:
    """Return how to look at steps of a world whose observations lie like this.

    To look at all that there is takes ten times as long, and the first steps of thousands of worlds are looked at.
    """
    leaf = layout.only
    if leaf is None:
        return lambda _: False
    shape, dtype, ndarray, numpy_bool, isnan = leaf.shape, leaf.dtype, np.ndarray, np.bool_, math.isnan
    has_nan = dtype.kind == "f" and math.prod(shape) > 0

    def look(result: Any) -> bool:
        if type(result) is not tuple or len(result) != 5:
            return False
        observation, reward, terminated, truncated, _ = result
        if type(observation) is not ndarray or observation.shape != shape:
            return False
        if observation.dtype is not dtype and observation.dtype != dtype:
            return False
        if has_nan and isnan(observation.item(observation.argmax())):
            return False  # NaN counts as the largest, if there is any
        return (
            (type(reward) is float or type(reward) in _REWARDS)
            and (terminated is False or terminated is True or type(terminated) is numpy_bool)
            and (truncated is False or truncated is True or type(truncated) is numpy_bool)
        )

    return look


_REWARDS = frozenset((int, np.float64, np.float32))


def check_observation(layout: SpaceLayout, value: Any, place: Place, *, strict: bool = False) -> None:
    """Raise `InvalidOutput` unless `value` fits into the layout's arrays without loss (float64 may lose digits).

    With `strict`, values must also be within the bounds of their spaces.
    """
    for leaf in layout.leaves:
        try:
            part = leaf.get(value)
        except (KeyError, IndexError, TypeError):
            raise InvalidOutput(
                f"an observation must have every part of its space {layout.space}, and observation{leaf.name} is "
                f"missing from {_short(value)}; return it, or leave it out of the space ({place})",
                place,
            ) from None
        if leaf.fixed:
            problem = _problem(leaf, part, strict)
            if problem:
                raise InvalidOutput(f"observation{leaf.name} {problem}, got {_short(part)} ({place})", place)


def check_scalars(reward: Any, terminated: Any, truncated: Any, place: Place, *, strict: bool = False) -> None:
    """Raise `InvalidOutput` unless the reward is one number (with `strict`, not NaN) and the flags are truth values."""
    if np.ndim(reward) != 0 or np.asarray(reward).dtype.kind not in "biuf":
        raise InvalidOutput(f"a reward must be one real number, got {_short(reward)} ({place})", place)
    if strict and np.isnan(reward):
        raise InvalidOutput(f"a reward must be a number, got {_short(reward)} ({place})", place)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if np.ndim(flag) != 0 or np.asarray(flag).dtype.kind not in "biu":
            raise InvalidOutput(f"{name} must be True or False, got {_short(flag)} ({place})", place)


def _problem(leaf: Leaf, value: Any, strict: bool) -> str | None:
    try:
        array = np.asarray(value)
    except ValueError:
        return f"must be an array of shape {leaf.shape}"
    if array.dtype.kind not in "biuf":
        return f"must be numbers of type {leaf.dtype}"
    if array.shape != leaf.shape:
        return f"must have shape {leaf.shape}"
    if not _may_cast(array.dtype, leaf.dtype):
        return f"must be of type {leaf.dtype} or one that it can hold"
    if array.dtype.kind == "f" and np.isnan(array).any() and isinstance(leaf.space, spaces.Box):
        return "must not be NaN, which no Box contains"
    kept = array
    if array.dtype != leaf.dtype:
        with np.errstate(over="ignore", invalid="ignore"):
            kept = array.astype(leaf.dtype)
        if leaf.dtype.kind == "f":
            lost = bool((np.isinf(kept) & ~np.isinf(array)).any()) if array.dtype.kind == "f" else False
        else:
            lost = not np.array_equal(kept, array)
        if lost:
            return f"must fit into {leaf.dtype}"
    return f"must be within the bounds of {leaf.space}" if strict and not leaf.space.contains(kept) else None


def _may_cast(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    # Integers of any width and sign may pass: whether the values fit is looked at one by one.
    return bool(np.can_cast(source, target, "same_kind")) or (source.kind in "biu" and target.kind in "iu")


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        text = np.array2string(value, threshold=8, edgeitems=2, separator=", ").replace("\n", "")
        kind = f"shape {value.shape}, {value.dtype}"
    else:
        text, kind = repr(value), type(value).__name__
    return f"{text if len(text) <= 120 else f'{text[:117]}...'} ({kind})"
