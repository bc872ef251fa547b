"""Actions: refused before anything is sent, or laid into arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.envs.layout import Array, Leaf, SpaceLayout
from stretto.errors import InvalidAction

Rule = Callable[[Array, Sequence[int]], None]


class ActionGate:
    """Checks batches of actions and takes them apart into one array a leaf.

    Boxes are checked for shape, type and NaN, not for their bounds: most worlds clip, and learners rely on that.
    """

    def __init__(self, layout: SpaceLayout) -> None:
        self._layout = layout
        self._rules = [_rule(leaf) for leaf in layout.fixed]

    def admit(self, actions: Any, slots: Sequence[int]) -> list[Array]:
        """Return the actions of `slots` as arrays of the leaves' types, copied.

        Raises:
            InvalidAction: with the slot, the rule and the value.
        """
        return [
            self._admit_leaf(leaf, rule, actions, slots)
            for leaf, rule in zip(self._layout.fixed, self._rules, strict=True)
        ]

    def admit_loose(self, actions: Any, slots: Sequence[int]) -> list[Any]:
        """Return one action a slot, for spaces that have no fixed size."""
        rows = _rows(self._layout.space, actions)
        if len(rows) != len(slots):
            raise InvalidAction(f"actions must be one for each of {len(slots)} slots, got {len(rows)}")
        for slot, row in zip(slots, rows, strict=True):
            if not self._layout.space.contains(row):
                raise InvalidAction(f"the action of slot {slot} must be in {self._layout.space}, got {row!r}")
        return rows

    def _admit_leaf(self, leaf: Leaf, rule: Rule, actions: Any, slots: Sequence[int]) -> Array:
        try:
            array = np.array(leaf.get(actions))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidAction(
                f"actions must have a part{leaf.name} that is an array of shape {(len(slots), *leaf.shape)}, "
                f"got {type(actions).__name__} ({type(error).__name__}: {error})"
            ) from None
        if array.shape != (len(slots), *leaf.shape):
            raise InvalidAction(
                f"actions{leaf.name} must have shape {(len(slots), *leaf.shape)}, one row for each slot, got shape "
                f"{array.shape}"
            )
        if array.dtype != leaf.dtype:
            array = _cast(leaf, array)
        rule(array, slots)
        return array


def _cast(leaf: Leaf, array: Array) -> Array:
    source, target = array.dtype, leaf.dtype
    fits = np.can_cast(source, target, "same_kind") or (source.kind in "biu" and target.kind in "iu")
    if source.kind not in "biuf" or not fits:
        raise InvalidAction(f"actions{leaf.name} must be numbers of type {target}, got {source} for {leaf.space}")
    return array.astype(target)


def _rule(leaf: Leaf) -> Rule:
    space = leaf.space
    match space:
        case spaces.Discrete():
            start, count = int(space.start), int(space.n)

            def in_range(array: Array, slots: Sequence[int]) -> None:
                # Below the start wraps round to a huge number: one comparison does for both ends.
                bad = (array - start).view(np.uint64) >= count
                if bad.any():
                    _refuse(leaf, array, bad, slots, f"from {start} to {start + count - 1}")

            return in_range if leaf.dtype == np.int64 else _contains(leaf)
        case spaces.MultiDiscrete() if leaf.dtype == np.int64:
            starts, counts = np.asarray(space.start, np.int64), np.asarray(space.nvec, np.uint64)

            def each_in_range(array: Array, slots: Sequence[int]) -> None:
                bad = (array - starts).view(np.uint64) >= counts
                if bad.any():
                    _refuse(leaf, array, bad, slots, f"in {space}")

            return each_in_range
        case spaces.Box() if leaf.dtype.kind == "f":

            def finite(array: Array, slots: Sequence[int]) -> None:
                bad = np.isnan(array)
                if bad.any():
                    _refuse(leaf, array, bad, slots, "without NaN")

            return finite
        case spaces.Box():
            return lambda array, slots: None
        case _:
            return _contains(leaf)


def _contains(leaf: Leaf) -> Rule:
    def contained(array: Array, slots: Sequence[int]) -> None:
        for slot, row in zip(slots, array, strict=True):
            if not leaf.space.contains(row):
                raise InvalidAction(f"the action{leaf.name} of slot {slot} must be in {leaf.space}, got {row}")

    return contained


def _refuse(leaf: Leaf, array: Array, bad: Array, slots: Sequence[int], rule: str) -> None:
    row = int(np.flatnonzero(bad.reshape(len(array), -1).any(axis=1))[0])
    raise InvalidAction(f"the action{leaf.name} of slot {slots[row]} must be {rule}, got {array[row]}")


def _rows(space: spaces.Space[Any], actions: Any) -> list[Any]:
    """Take a batch of any space apart into single actions."""
    if isinstance(space, spaces.Dict):
        columns = {key: _rows(part, actions[key]) for key, part in space.spaces.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if isinstance(space, spaces.Tuple):
        return list(zip(*(_rows(part, actions[i]) for i, part in enumerate(space.spaces)), strict=True))
    return list(actions)
