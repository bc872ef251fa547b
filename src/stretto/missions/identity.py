"""What a mission is called, wherever its code lies, and what it is made of."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto.identity import Record, identify, name_of
from stretto.missions.makers import FactoryMaker, Maker, Reference, SpecMaker, WrappedMaker
from stretto.missions.mission import Mission


def canonical_name(factory: Callable[..., Any] | Reference) -> str:
    """Return what code that makes a world is called: the stem of its file and its own name, and never a path.

    Its episodes follow from this name: `game.py:coins`, `./game.py:coins`, `pkg.game:coins` and the function itself, given in
    a program, have the same ones. What was defined where there is no file, as in a notebook, has its own name alone.
    """
    if isinstance(factory, Reference):
        stem = Path(factory.where).stem if factory.where.endswith(".py") else factory.where.rpartition(".")[2]
        return f"{stem}:{factory.name}"
    own = factory if hasattr(factory, "__module__") else type(factory)
    file = getattr(sys.modules.get(own.__module__), "__file__", None)
    stem = "" if file is None else Path(file).stem
    stem = Path(str(file)).parent.name if stem == "__init__" else stem
    return f"{stem}:{name_of(factory)}" if stem else name_of(factory)


def identify_mission(mission: Mission) -> Record:
    """Return the code and the settings of a mission, and the version of the package that its world comes from."""
    target, settings = _made_by(mission.make)
    settings["steps"] = mission.max_steps
    if mission.has_default_action:
        settings["default_action"] = mission.default_action
    return identify(target, {name: value for name, value in settings.items() if value is not None})


def _made_by(make: Maker) -> tuple[Any, dict[str, Any]]:
    """Return the code that makes a world, and all that it is given."""
    match make:
        case SpecMaker(spec, kwargs):
            wrappers = [repr(one) for one in spec.additional_wrappers]
            settings = {"id": spec.id, "max_episode_steps": spec.max_episode_steps, "wrappers": wrappers or None}
            return spec.entry_point, {**settings, **_arguments({**spec.kwargs, **kwargs})}
        case FactoryMaker(Reference(where, name), kwargs):
            return f"{where}:{name}", _arguments(kwargs)
        case FactoryMaker(factory, kwargs):
            return factory, _arguments(kwargs)
        case WrappedMaker(inner, wrappers):
            target, settings = _made_by(inner)
            return target, {**settings, "wrapped": list(wrappers)}
        case _:
            return make, {}


def _arguments(kwargs: Any) -> dict[str, Any]:
    return {f"kw.{name}": value for name, value in kwargs.items()}
