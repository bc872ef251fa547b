"""Whether two values are the same to the last bit; and where they part, if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.errors import StrettoError


class ContractBroken(StrettoError, AssertionError):
    """Something does not keep what its contract promises; the message says what, where and what to do."""


def require(holds: object, sentence: str) -> None:
    """Raise `ContractBroken` with this sentence unless `holds`."""
    if not holds:
        raise ContractBroken(sentence)


def check_same(one: Any, other: Any, what: str) -> None:
    """Raise `ContractBroken` unless both values are the same, as `difference` understands it."""
    found = difference(one, other)
    require(found is None, f"{what}: {found}")


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """Say where two values part: types, dtypes, shapes, the order of keys, and every bit; `None` if nowhere.

    NaN is equal to itself, and 0.0 is not -0.0: a replay or another width gives the same bits, not merely close ones.
    Objects without an `==` of their own are compared by their attributes.
    """
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _array_difference(one, other, where)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _mapping_difference(one, other, where)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return _sequence_difference(one, other, where)
    if type(one) is not type(other):
        return f"{where or 'the value'} is a {type(one).__name__} in one and a {type(other).__name__} in the other"
    if not _has_own_equality(one):
        return _contents_difference(one, other, where)
    if isinstance(one, (float, np.generic)):
        same = np.asarray(one).tobytes() == np.asarray(other).tobytes() or _both_nan(one, other)
    else:
        same = _equal_objects(one, other)
    return None if same else f"{where or 'the value'} is {one!r} in one and {other!r} in the other"


def _array_difference(
    one: np.ndarray[Any, np.dtype[Any]], other: np.ndarray[Any, np.dtype[Any]], where: str
) -> str | None:
    name = where or "the array"
    if one.dtype != other.dtype:
        return f"{name} has type {one.dtype} in one and {other.dtype} in the other"
    if one.shape != other.shape:
        return f"{name} has shape {one.shape} in one and {other.shape} in the other"
    if not one.dtype.hasobject and one.tobytes() == other.tobytes():
        return None
    pairs = zip(np.ndindex(one.shape), one.flat, other.flat, strict=True)
    return next((d for at, a, b in pairs if (d := difference(a, b, f"{where}[{', '.join(map(str, at))}]"))), None)


def _mapping_difference(one: Mapping[Any, Any], other: Mapping[Any, Any], where: str) -> str | None:
    if list(one) != list(other):
        return f"{where or 'the mapping'} has the keys {list(one)} in one and {list(other)} in the other"
    return next((d for key in one if (d := difference(one[key], other[key], f"{where}[{key!r}]"))), None)


def _sequence_difference(one: Sequence[Any], other: Sequence[Any], where: str) -> str | None:
    # A NamedTuple stands for the tuple that it is; a list and a tuple are not the same.
    if isinstance(one, tuple) != isinstance(other, tuple) or len(one) != len(other):
        return f"{where or 'the sequence'} is {one!r} in one and {other!r} in the other"
    names = getattr(one, "_fields", None)
    places = [f"{where}.{name}".lstrip(".") for name in names] if names else [f"{where}[{i}]" for i in range(len(one))]
    return next((d for a, b, at in zip(one, other, places, strict=True) if (d := difference(a, b, at))), None)


def _both_nan(one: Any, other: Any) -> bool:
    kinds = np.asarray(one).dtype.kind
    return kinds in "fc" and bool(np.isnan(one) and np.isnan(other))


def _equal_objects(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (ValueError, TypeError):  # objects that refuse to be compared: two copies of one cannot be told apart
        return True


_compared: set[tuple[int, int]] = set()
"""The objects that are being compared: one may hold itself."""


def _has_own_equality(value: Any) -> bool:
    own: Any = type(value).__eq__
    return own is not object.__eq__


def _contents_difference(one: Any, other: Any, where: str) -> str | None:
    """Say where two objects part that are equal to nothing but themselves: what they hold decides."""
    pair = id(one), id(other)
    if one is other or pair in _compared:
        return None
    _compared.add(pair)
    try:
        return _mapping_difference(getattr(one, "__dict__", {}), getattr(other, "__dict__", {}), where)
    finally:
        _compared.discard(pair)
