"""What a mission is made of."""

from __future__ import annotations

from typing import Any

from stretto.identity.record import Record, identify
from stretto.missions.makers import FactoryMaker, Maker, Reference, SpecMaker, WrappedMaker
from stretto.missions.mission import Mission


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
        case FactoryMaker(Reference() as reference, kwargs):
            return reference.text, _arguments(kwargs)
        case FactoryMaker(factory, kwargs):
            return factory, _arguments(kwargs)
        case WrappedMaker(inner, wrappers):
            target, settings = _made_by(inner)
            return target, {**settings, "wrapped": list(wrappers)}
        case _:
            return make, {}


def _arguments(kwargs: Any) -> dict[str, Any]:
    return {f"kw.{name}": value for name, value in kwargs.items()}
