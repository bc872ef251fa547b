"""Copies of Sorrel's entities: what `copy.deepcopy` gives, in a twentieth of the time where nothing in them can change."""

from __future__ import annotations

import copy
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_LASTING = frozenset({bool, int, float, str, type(None), type(Path())})
"""Values that cannot change, so that a copy may have the same ones."""


def copy_faster() -> None:
    """Let Sorrel's grids copy entities by `copied`, in this process, from now on; may be called twice.

    Every move fills the place that was left with a copy of the grid's default entity. Its picture is a `Path`, and to copy
    that takes longer than all else.
    """
    module: Any = sys.modules["sorrel.worlds.gridworld"]
    if module.copy is copy:
        module.copy = SimpleNamespace(deepcopy=copied)


def copied(entity: Any) -> Any:
    """Return a deep copy."""
    kind: Any = type(entity)
    if not _is_plain(kind) or not all(map(_is_lasting, vars(entity).values())):
        return copy.deepcopy(entity)
    made = kind.__new__(kind)
    vars(made).update(vars(entity))
    return made


def _is_lasting(value: Any) -> bool:
    kind = type(value)
    return kind in _LASTING or (kind is tuple and all(map(_is_lasting, value)))


@cache
def _is_plain(kind: Any) -> bool:
    """Whether objects of a class are copied by their attributes alone."""
    own = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    as_ever = all(getattr(kind, name) is getattr(object, name) for name in own)
    has_slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    return as_ever and not has_slots and not hasattr(kind, "__deepcopy__") and not hasattr(kind, "__setstate__")
