"""Dataclasses from what JSON holds, checked by the types that their fields are annotated with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import MISSING
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

R = TypeVar("R")


def record_from(kind: type[R], values: Any) -> R:
    """Return a record of these values, by the names of its fields.

    Raises:
        ValueError: if a value has another type than its field, is of no field, or is missing; the message says which.
    """
    if not isinstance(values, dict):
        raise ValueError(f"it is {_short(values)}")  # noqa: TRY004  a damaged file is no mistake in a program
    needed, hints = _fields(cast(Any, kind))
    if wrong := sorted(needed - values.keys()):
        raise ValueError(f"it has no {wrong[0]}")
    for name, value in values.items():
        if name not in hints:
            raise ValueError(f"it has an unknown {_short(name)}")
        if not _fits(value, hints[name]):
            raise ValueError(f"its {name} is {_short(value)}")
    return kind(**values)


@functools.cache
def _fields(kind: Any) -> tuple[set[str], dict[str, Any]]:
    """Return which fields of a record must be given, and the types of all."""
    fields = dataclasses.fields(kind)
    return {one.name for one in fields if one.default is MISSING and one.default_factory is MISSING}, get_type_hints(
        kind
    )


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(hint, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    origin = get_origin(hint)
    if origin is Mapping:
        key, each = get_args(hint)
        return isinstance(value, dict) and all(_fits(k, key) and _fits(v, each) for k, v in value.items())
    if origin is list:
        return isinstance(value, list) and all(_fits(one, get_args(hint)[0]) for one in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
