"""Actions: refused before a world gets them, whether a batch for many worlds or the choice of one agent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.errors import InvalidAction
from stretto.spaces import Array, Leaf, SpaceLayout

Rule = Callable[[Array, Sequence[int]], None]


class ActionGate:
    """Checks batches of actions and takes them apart into one array a leaf.

    Boxes of real numbers are checked for shape, type and NaN, not for their bounds: most worlds clip, and learners
    rely on that.
    """

    def __init__(self, layout: SpaceLayout) -> None:
        self._layout = layout
        self._rules = [_rule(leaf) for leaf in layout.fixed]
        self._dtype = None if layout.only is None else layout.only.dtype
        self._shape: tuple[int, ...] | None = None  # of the last batch that was right
        self.choices = known_choices(layout.only.space, all_of_them=True) if layout.only is not None else {}

    def admit(self, actions: Any, slots: Sequence[int]) -> list[Any]:
        """Return the actions of `slots`, copied: an array a leaf, or an action a slot where leaves have no fixed size.

        Raises:
            InvalidAction: with the slot, the rule and the value.
        """
        if type(actions) is np.ndarray and actions.dtype is self._dtype and actions.shape == self._shape:
            array = actions.copy()  # the common case, with nothing around it: it stands in every step
            if len(array) == len(slots):
                self._rules[0](array, slots)
                return [array]
        return self._admit_rows(actions, slots) if self._layout.loose else self._admit_arrays(actions, slots)

    def admit_each(self, actions: Any, slots: Sequence[int]) -> list[Any]:
        """Return the actions of `slots` one by one, as an array of them gives them, where there are `choices`.

        To look a choice up takes half of the time of making it anew, and shows that it is right.
        """
        if type(actions) is np.ndarray and actions.dtype is self._dtype and actions.shape == self._shape:
            choices = self.choices
            try:
                if len(actions) == len(slots):
                    return [choices[number] for number in actions.tolist()]
            except KeyError:
                pass  # there is none such, and `admit` says whose it is
        return list(self.admit(actions, slots)[0])

    def _admit_arrays(self, actions: Any, slots: Sequence[int]) -> list[Array]:
        leaves = self._layout.fixed
        return [self._admit_leaf(leaf, rule, actions, slots) for leaf, rule in zip(leaves, self._rules, strict=True)]

    def _admit_rows(self, actions: Any, slots: Sequence[int]) -> list[Any]:
        """Return one action a slot, copied: for spaces with parts that have no fixed size."""
        arrays = self._admit_arrays(actions, slots)
        objects = [_admit_objects(leaf, actions, slots) for leaf in self._layout.loose]
        return [self._layout.row(arrays, objects, row) for row in range(len(slots))]

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
        self._shape = array.shape
        return array


def _cast(leaf: Leaf, array: Array) -> Array:
    source, target = array.dtype, leaf.dtype
    fits = np.can_cast(source, target, "same_kind") or (source.kind in "biu" and target.kind in "iu")
    if source.kind not in "biuf" or not fits:
        raise InvalidAction(f"actions{leaf.name} must be numbers of type {target}, got {source} for {leaf.space}")
    kept = array.astype(target)
    if target.kind in "iu" and (kept != array).any():
        raise InvalidAction(f"actions{leaf.name} must fit into {target}, got {array.min()} to {array.max()}")
    return kept


def _rule(leaf: Leaf) -> Rule:
    space = leaf.space
    match space:
        case spaces.Discrete():
            return _in_range(leaf, int(space.start), int(space.n)) if leaf.dtype == np.int64 else _contains(leaf)
        case spaces.MultiDiscrete() if leaf.dtype == np.int64:
            starts, counts = np.asarray(space.start, np.int64), np.asarray(space.nvec, np.uint64)
            return _refusing(leaf, lambda array: (array - starts).view(np.uint64) >= counts, f"in {space}")
        case spaces.Box() if leaf.dtype.kind == "f":
            return _refusing(leaf, np.isnan, "without NaN")
        case spaces.Box() if leaf.dtype.kind in "iu":
            # No world clips integers, and several agents' MultiDiscrete actions are such a Box.
            low, high = space.low, space.high
            return _refusing(leaf, lambda array: (array < low) | (array > high), f"in {space}")
        case spaces.Box():
            return lambda array, slots: None
        case _:
            return _contains(leaf)


def _refusing(leaf: Leaf, find_bad: Callable[[Array], Array], rule: str) -> Rule:
    def check(array: Array, slots: Sequence[int]) -> None:
        bad = find_bad(array)
        if bad.any():
            _refuse(leaf, array, bad, slots, rule)

    return check


_FEW = 8
_MOST_KNOWN = 1024

WHOLE = frozenset({int, np.int64, np.int32})
"""Types of whole numbers that nobody can change."""


def _in_range(leaf: Leaf, start: int, count: int) -> Rule:
    rule = f"from {start} to {start + count - 1}"
    stop = start + count

    def check(array: Array, slots: Sequence[int]) -> None:
        if len(array) <= _FEW:  # plain numbers are compared in half of the time
            for value in array.tolist():
                if not start <= value < stop:
                    _refuse(leaf, array, (array < start) | (array >= stop), slots, rule)
            return
        # Below the start wraps round to a huge number, so that the largest tells for both ends. Looking for where it
        # is takes half of the time that a reduction takes.
        moved = (array - start if start else array).view(np.uint64)
        if moved.item(moved.argmax()) >= count:
            _refuse(leaf, array, moved >= count, slots, rule)

    return check


def _contains(leaf: Leaf) -> Rule:
    def contained(array: Array, slots: Sequence[int]) -> None:
        for slot, row in zip(slots, array, strict=True):
            _check_contained(leaf, slot, row)

    return contained


def _check_contained(leaf: Leaf, slot: int, value: Any) -> None:
    why = ""
    try:
        contained = leaf.space.contains(value)
    except Exception as error:  # noqa: BLE001  the test of a custom space may expect what this value does not have
        contained, why = False, f" (its test raised {type(error).__name__}: {error})"
    if not contained:
        raise _of_slot(slot, f"the action{leaf.name} of slot {slot} must be in {leaf.space}, got {value!r}{why}")


def _refuse(leaf: Leaf, array: Array, bad: Array, slots: Sequence[int], rule: str) -> None:
    row = int(np.flatnonzero(bad.reshape(len(array), -1).any(axis=1))[0])
    raise _of_slot(slots[row], f"the action{leaf.name} of slot {slots[row]} must be {rule}, got {array[row]}")


def _of_slot(slot: int, message: str) -> InvalidAction:
    error = InvalidAction(message)
    error.slot = int(slot)
    return error


def _admit_objects(leaf: Leaf, actions: Any, slots: Sequence[int]) -> list[Any]:
    try:
        values = list(leaf.get(actions))
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidAction(
            f"actions must have a part{leaf.name} that is a sequence of {len(slots)} values, got "
            f"{type(actions).__name__} ({type(error).__name__}: {error})"
        ) from None
    if len(values) != len(slots):
        raise InvalidAction(f"actions{leaf.name} must be one for each of {len(slots)} slots, got {len(values)}")
    for slot, value in zip(slots, values, strict=True):
        _check_contained(leaf, slot, value)
    return copy.deepcopy(values)


def known_choices(space: spaces.Space[Any], *, all_of_them: bool = False) -> dict[int, Any]:
    """Return the choices of a space of few numbers, each as the space has it; of others nothing.

    An action of one of the types `WHOLE` that is a key is right: `complaint` need not look at it. If `all_of_them` are
    wanted, there are none of a space that has too many.
    """
    if not isinstance(space, spaces.Discrete) or (all_of_them and space.n > _MOST_KNOWN):
        return {}
    first = int(space.start)
    return {number: space.dtype.type(number) for number in range(first, first + min(int(space.n), _MOST_KNOWN))}


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
