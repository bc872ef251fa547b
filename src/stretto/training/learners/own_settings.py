"""The settings of a learner of one's own, and what it is called."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import UsageError


@dataclass(frozen=True)
class OwnSettings:
    """For a learner of one's own: how many `rows` of each environment it learns from, and its own `arguments`."""

    rows: int = 128
    arguments: Mapping[str, Any] = field(default_factory=dict)


def is_own(learner: str) -> bool:
    """Whether a learner is given by where it is, not by a name."""
    return ":" in learner


def learner_text(learner: str | Callable[..., Any] | None) -> str | None:
    """Return what a learner is called; a class is called by its file or module, so that any process finds it."""
    if learner is None or isinstance(learner, str):
        return learner
    module = sys.modules.get(learner.__module__)
    where = inspect.getsourcefile(learner) if learner.__module__ == "__main__" else learner.__module__
    name = learner.__qualname__
    if where is None or not where.removesuffix(".py") or "<" in name or module is None:
        raise UsageError(f"a learner must be a class at the top of a file or module, got {learner!r}; move it there")
    return f"{where}:{name}"
