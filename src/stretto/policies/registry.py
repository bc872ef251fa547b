"""Policies that have a short name: ours, and those that installed packages register."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from stretto.errors import UsageError
from stretto.registry import Known, first_line, installed, known, near_or_all

ENTRY_POINT_GROUP = "stretto.policies"

FORMS = (
    "a known name, the folder of a training run, pkg.module:Class or file.py:Class, perhaps with settings: "
    "NAME,name=LABEL,data=FILE,kw.x=1; or a network in a file: FILE.zip (Stable-Baselines3), FILE.onnx, FILE.pt or FILE.pt2"
)
"""What a user can write for a policy."""

_BUILTIN = {
    "random": ("draws every action uniformly from the action space", "stretto.policies.builtin:Random"),
    "noop": ("does nothing, as far as the action space allows that", "stretto.policies.builtin:Noop"),
    "gatherer": (
        "Foundry: takes the nearest ore that it lacks, then the nearest forge",
        "stretto.policies.foundry:Gatherer",
    ),
    "planner": (
        "Foundry: compares whole itineraries in each step, and takes the best",
        "stretto.policies.foundry:Planner",
    ),
    "neural": ("a small recurrent network; needs torch", "stretto.policies.neural:Neural"),
}


def known_policies() -> dict[str, Known[str]]:
    """Return all policies that have a short name, each with its `module:Class`; ours are not imported for it."""
    own = [Known(name, summary, target, target) for name, (summary, target) in _BUILTIN.items()]
    return known(own, ENTRY_POINT_GROUP, _registered, remedy="write {target} instead")


def _registered(point: EntryPoint, found: Any) -> list[Known[str]]:
    return [Known(point.name, first_line(found), point.value, point.value)]


def is_known(name: str) -> bool:
    """Whether a policy has this short name."""
    return name in _BUILTIN or name in installed(ENTRY_POINT_GROUP)


def registered(name: str) -> str:
    """Return the `module:Class` that a short name stands for; nothing is imported for it.

    Raises:
        UsageError: with the nearest known names.
    """
    if name in _BUILTIN:
        return _BUILTIN[name][1]
    others = installed(ENTRY_POINT_GROUP)
    if name in others:
        return f"{others[name].module}:{others[name].attr}"
    if name.endswith(".py"):
        remedy = f"; name the class in the file, as in {name}:Class"
    else:
        remedy = near_or_all(name, [*_BUILTIN, *others])
    raise UsageError(f"a policy is {FORMS}; got {name!r}{remedy}")
