"""What cogames has under a name; imports nothing of it, so that whoever is told need not import it either."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Found:
    """A mission that cogames has: what it calls it, and what `make` is given for it."""

    name: str
    mission: str
    summary: str = ""


@dataclass(frozen=True, slots=True)
class FoundPolicy:
    """A policy that cogames has: its class, what it is built with, and its weights; or a bundle that says all of this."""

    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    proportion: float = 1.0
