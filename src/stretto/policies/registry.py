"""Policies that have a short name: ours, and those that installed packages register."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from stretto.errors import UsageError

ENTRY_POINT_GROUP = "stretto.policies"

FORMS = "a known name, pkg.module:Class, file.py:Class, or class=NAME,data=FILE,proportion=N,strategy=NAME,kw.x=1"
"""What a user can write for a policy."""


@dataclass(frozen=True, slots=True)
class KnownPolicy:
    """A line of the listing; `error` says why an installed one cannot be used."""

    name: str
    summary: str
    target: str
    error: str | None = None


_BUILTIN = {
    known.name: known
    for known in (
        KnownPolicy("random", "draws every action uniformly from the action space", "stretto.policies.builtin:Random"),
        KnownPolicy("noop", "does nothing, as far as the action space allows that", "stretto.policies.builtin:Noop"),
        KnownPolicy(
            "gatherer",
            "Foundry: takes the nearest ore that it lacks, then the nearest forge",
            "stretto.policies.foundry:Gatherer",
        ),
        KnownPolicy(
            "planner",
            "Foundry: compares whole itineraries in each step, and takes the best",
            "stretto.policies.foundry:Planner",
        ),
        KnownPolicy("neural", "a small recurrent network; needs torch", "stretto.policies.neural:Neural"),
    )
}


def known_policies() -> dict[str, KnownPolicy]:
    """Return all policies that have a short name: ours, and those that installed packages register.

    Ours are not imported for it. An installed one that cannot be imported, or whose name is taken, is listed with
    its error.
    """
    known = dict(_BUILTIN)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name in known:
            taken = f"the name {point.name} is taken by {known[point.name].target}; write {point.value} instead"
            known[point.value] = KnownPolicy(point.value, "", point.value, taken)
        else:
            known[point.name] = _described(point)
    return known


def _described(point: EntryPoint) -> KnownPolicy:
    try:
        found = point.load()
        summary = (inspect.getdoc(found) or "").partition("\n")[0]
    except (Exception, SystemExit) as error:  # noqa: BLE001  listed as the policy's error, and it must not hide others
        return KnownPolicy(point.name, "", point.value, " ".join(f"{type(error).__name__}: {error}".split()))
    return KnownPolicy(point.name, summary, point.value)


def registered(name: str) -> str:
    """Return the `module:Class` that a short name stands for; nothing is imported for it.

    Raises:
        UsageError: with the nearest known names.
    """
    if name in _BUILTIN:
        return _BUILTIN[name].target
    installed = {point.name: point for point in reversed(list(entry_points(group=ENTRY_POINT_GROUP)))}
    if name in installed:
        return f"{installed[name].module}:{installed[name].attr}"
    if "=" in name:
        remedy = f"; settings follow class=NAME, as in class={name}"
    elif name.endswith(".py"):
        remedy = f"; name the class in the file, as in {name}:Class"
    else:
        known = [*_BUILTIN, *installed]
        remedy = near(name, known) or f"; known are {', '.join(known)}"
    raise UsageError(f"a policy is {FORMS}; got {name!r}{remedy}")


def near(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that offers names like `name`, or nothing."""
    spellings = {one.lower(): one for one in known}
    longer = [one for one in spellings if name and one.startswith(name.lower())]
    close = list(dict.fromkeys([*longer, *difflib.get_close_matches(name.lower(), spellings, n=3, cutoff=0.5)]))[:3]
    return f"; did you mean {' or '.join(spellings[one] for one in close)}?" if close else ""
