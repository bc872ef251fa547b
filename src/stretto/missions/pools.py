"""Worlds of EnvPool, which come in pools: what makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.errors import UsageError
from stretto.identity.source import find_module
from stretto.missions.makers import FactoryMaker, Reference

POOL = "envpool"
"""The package, and what a text begins with that names a world of it."""


def is_pool(source: Any) -> bool:
    """Whether a text stands for a world that comes in pools."""
    return isinstance(source, str) and source.startswith(f"{POOL}:")


def pool_maker(task: str, kwargs: Mapping[str, Any]) -> FactoryMaker:
    """Return what makes a world, or, where it is told how many, a pool of them."""
    if find_module(POOL) is None:
        raise UsageError(f"a world of EnvPool needs the package envpool, which is not installed, got {task!r}")
    return FactoryMaker(Reference("stretto.adapters.envpool", "make"), {**kwargs, "task": task})
