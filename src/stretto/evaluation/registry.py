"""Missions that have a short name: those of our games, and those that installed packages register."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

ENTRY_POINT_GROUP = "stretto.missions"
"""Entry points of this group are functions or classes that make a world, or modules with `MISSIONS`, `VARIANTS` and
`make`, as our games have them."""

_GAMES = {"foundry": "Foundry", "netdefense": "Netdefense", "pointgoal": "Pointgoal"}


@dataclass(frozen=True, slots=True)
class KnownMission:
    """A line of the listing; `error` says why an installed one cannot be used."""

    name: str
    summary: str
    game: str
    kwargs: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]
    make: Callable[..., Any]
    error: str | None = None


def our_missions() -> dict[str, KnownMission]:
    """Return the missions of our games."""
    known = {}
    for game, name in _GAMES.items():
        module = importlib.import_module(f"stretto.games.{game}")
        for mission in _of_game(game, module, getattr(module, name)):
            known[mission.name] = mission
    return known


def known_missions() -> dict[str, KnownMission]:
    """Return the missions of our games, and those that installed packages register.

    What cannot be imported, or has a name that is taken, is listed with its error: other people's mistakes hide nothing.
    """
    known = our_missions()
    for point in entry_points(group=ENTRY_POINT_GROUP):
        for mission in _registered(point):
            if mission.name not in known:
                known[mission.name] = mission
            else:
                taken = f"its name is taken by a mission of {known[mission.name].game}"
                known[f"{point.value}:{mission.name}"] = _broken(mission.name, point, taken)
    return known


def _registered(point: EntryPoint) -> list[KnownMission]:
    try:
        found = point.load()
        if hasattr(found, "MISSIONS"):
            return _of_game(point.name, found, found.make)
        if not callable(found):
            return [_broken(point.name, point, "it is no function that makes a world, and has no MISSIONS")]
        summary = (inspect.getdoc(found) or "").partition("\n")[0]
        return [KnownMission(point.name, summary, point.name, {}, {}, found)]
    except (Exception, SystemExit) as error:  # noqa: BLE001  listed as the mission's error, and it must not hide others
        return [_broken(point.name, point, f"{type(error).__name__}: {error}")]


def _of_game(game: str, module: Any, make: Callable[..., Any]) -> list[KnownMission]:
    variants = getattr(module, "VARIANTS", {})
    return [
        KnownMission(name, about["summary"], game, dict(about["kwargs"]), variants, make)
        for name, about in module.MISSIONS.items()
    ]


def _broken(name: str, point: EntryPoint, error: str) -> KnownMission:
    package = point.dist.name if point.dist is not None else point.value
    told = f"of the package {package}: {' '.join(error.split())}"
    return KnownMission(name, "", point.name, {}, {}, _not_there, told)


def _not_there() -> Any:
    raise AssertionError("a mission with an error is never made")


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence about a name that nobody knows, with the nearest ones."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 3, 0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names) or 'none'}"
    return f"no {what} is called {name!r}; {hint}"
