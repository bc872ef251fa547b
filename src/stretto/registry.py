"""Things that have a short name: ours, and those that installed packages register as entry points."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CUTOFF = 0.5
"""How alike two names must be for one to be offered in place of the other; 1 is equal."""


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """A line of a listing: what a short name stands for, and where that comes from.

    `package` is the installed one that registers it, and empty for ours. `error` says why it cannot be used; then there
    need not be a `value`.
    """

    name: str
    summary: str
    origin: str
    value: T | None = None
    package: str = ""
    error: str | None = None


def known(
    own: Iterable[Known[T]],
    group: str,
    read: Callable[[EntryPoint, Any], Iterable[Known[T]]],
    *,
    remedy: str = "its package must choose another",
) -> dict[str, Known[T]]:
    """Return our own things and those of installed packages by name; `read` says what an imported entry point gives.

    What cannot be imported, or has a name that is taken, is listed with its error: other people's mistakes hide nothing.
    The `remedy` is for the latter; `{target}` in it becomes what the entry point refers to.
    """
    found = {one.name: one for one in own}
    for point in entry_points(group=group):
        package = point.dist.name if point.dist is not None else point.value
        for one in _imported(point, read):
            row = replace(one, package=package)
            if row.name in found:
                name = point.value if row.name == point.name else f"{point.value}:{row.name}"
                advice = remedy.format(target=point.value)
                taken = f"the name {row.name} is taken by {found[row.name].origin}; {advice}"
                row = replace(row, name=name, value=None, error=taken)
            found[row.name] = row
    return found


def _imported(point: EntryPoint, read: Callable[[EntryPoint, Any], Iterable[Known[T]]]) -> list[Known[T]]:
    try:
        return list(read(point, point.load()))
    except (Exception, SystemExit) as error:  # noqa: BLE001  listed as its error, and it must not hide others
        return [Known(point.name, "", point.value, error=" ".join(f"{type(error).__name__}: {error}".split()))]


def installed(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages register, by name; nothing is imported for it."""
    return {point.name: point for point in reversed(list(entry_points(group=group)))}


def first_line(found: Any) -> str:
    """Return the summary that a documentation begins with."""
    return (inspect.getdoc(found) or "").partition("\n")[0]


def near(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence that offers names like `name`, or nothing."""
    spellings = {one.lower(): one for one in names}
    longer = [one for one in spellings if name and one.startswith(name.lower())]
    close = difflib.get_close_matches(name.lower(), spellings, n=3, cutoff=CUTOFF)
    offered = list(dict.fromkeys([*longer, *close]))[:3]
    return f"; did you mean {' or '.join(spellings[one] for one in offered)}?" if offered else ""


def near_or_all(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence that offers names like `name`, or all there are."""
    there = list(names)
    return near(name, there) or f"; known are {', '.join(there) or 'none'}"
