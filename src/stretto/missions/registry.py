"""Missions that have a short name: those of our games, and those that installed packages register."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from stretto.identity.source import find_module
from stretto.registry import Known, first_line, known

ENTRY_POINT_GROUP = "stretto.missions"
"""Entry points of this group are functions or classes that make a world, or modules with `MISSIONS`, `VARIANTS` and
`make`, as our games have them."""

_GAMES = {"foundry": "Foundry", "netdefense": "Netdefense", "pointgoal": "Pointgoal"}

_ADAPTED = {
    "CybORG": "stretto.adapters.cyborg",
    "mujoco": "stretto.adapters.mujoco_tasks",
    "sorrel": "stretto.adapters.sorrel.missions",
}
"""Packages whose worlds have short names, and our modules that know these; a package is imported only to make a world."""


@dataclass(frozen=True, slots=True)
class MissionRecipe:
    """How a mission is made, and what can be changed about it."""

    make: Callable[..., Any]
    kwargs: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]


KnownMission = Known[MissionRecipe]


def our_missions() -> dict[str, KnownMission]:
    """Return the missions of our games, and those of worlds that we know and that are installed."""
    rows = {}
    for game, name in _GAMES.items():
        module = importlib.import_module(f"stretto.games.{game}")
        rows.update({one.name: one for one in _of_game(game, module, getattr(module, name))})
    for package, about in _ADAPTED.items():
        if find_module(package) is not None:
            module = importlib.import_module(about)
            rows.update({one.name: one for one in _of_game(package, module, module.make)})
    return rows


def package_of(name: str) -> str | None:
    """Return the package that has the world of this short name, if it is not installed."""
    for package, about in _ADAPTED.items():
        if find_module(package) is None and name in importlib.import_module(about).MISSIONS:
            return package
    return None


def known_missions() -> dict[str, KnownMission]:
    """Return the missions of our games, and those that installed packages register."""
    return known(our_missions().values(), ENTRY_POINT_GROUP, _registered)


def _registered(point: EntryPoint, found: Any) -> list[KnownMission]:
    if hasattr(found, "MISSIONS"):
        return _of_game(point.name, found, found.make)
    if callable(found):
        return [Known(point.name, first_line(found), point.name, MissionRecipe(found, {}, {}))]
    error = "it is no function that makes a world, and has no MISSIONS"
    return [Known(point.name, "", point.name, error=error)]


def _of_game(game: str, module: Any, make: Callable[..., Any]) -> list[KnownMission]:
    variants = getattr(module, "VARIANTS", {})
    return [
        Known(name, about["summary"], game, MissionRecipe(make, dict(about["kwargs"]), variants))
        for name, about in module.MISSIONS.items()
    ]
