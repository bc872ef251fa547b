"""Values outside of a world that its code reads: globals, attributes of classes, settings in a dictionary.

Workers have them as they were when the vector environment was made, and the caller's own share as they are. Where one
has changed since, slots go different ways; that cannot be undone, but it is seen and said.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from stretto.errors import GlobalsChanged, user_stacklevel
from stretto.identity.objects import names_used
from stretto.identity.owners import is_users

_LOOK_EVERY = 64
"""After how many steps it is looked whether something has changed, which takes a few microseconds."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MISSING = object()


def globals_here(names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    """Return the globals of modules that have these names in this process, as far as there are such."""
    found = {(module, key): getattr(sys.modules.get(module), key, _MISSING) for module, key in names}
    return {name: value for name, value in found.items() if isinstance(value, _PLAIN)}


def classes_of(env: Any) -> list[type]:
    """Return the classes of a world and of all that is wrapped around it."""
    found: list[type] = []
    while env is not None and type(env) not in found:
        found.append(type(env))
        env = getattr(env, "env", None)
    return found


class GlobalsWatch:
    """Warns of what worlds read that is not the same for the caller's share of them, `slots`, and for workers."""

    def __init__(self, classes: Iterable[type], slots: range) -> None:
        self.values, self._slots = WatchedGlobals(classes), slots
        self._steps = 0

    def compare(self, there: Mapping[tuple[str, str], Any]) -> None:
        """Warn of globals that workers, who import modules anew, have otherwise than the caller."""
        here = self.values.globals()
        for (module, key), value in there.items():
            if value != here[module, key]:
                _warn(
                    f"{module}.{key} is {here[module, key]!r} in the caller and {value!r} in workers, which import {module} "
                    f"anew; give it by env_kwargs, set_attr() or tasks"
                )

    def count_step(self) -> None:
        """Look now and then."""
        self._steps += 1
        if self._steps == _LOOK_EVERY:
            self._steps = 0
            self.look()

    def look(self) -> None:
        """Warn of what has changed since the worlds were made, while some of them run in the caller."""
        first, last = self._slots[0], self._slots[-1]
        for name, before, now in self.values.changed():
            _warn(
                f"{name} was {before!r} when they were made and is {now!r}: slots {first} to {last}, which "
                f"run in the caller, see that, and others do not; give it by set_attr(), tasks or env_kwargs, or make the "
                f"environments anew"
            )


def _warn(how: str) -> None:
    message = f"what worlds read must be the same for all slots, and {how}"
    warnings.warn(message, GlobalsChanged, stacklevel=user_stacklevel())


class WatchedGlobals:
    """What the code of some classes reads that is a plain value and neither theirs nor installed, as it was at first.

    Of a dictionary only the keys are watched that it had: one that grows is a cache.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self._kept: dict[str, tuple[Mapping[str, Any], str, Any]] = {}
        self._seen: set[int] = set()
        for one in classes:
            self._walk(one)
        self._seen.clear()

    def changed(self) -> list[tuple[str, Any, Any]]:
        """Return the names of what has changed since the last call, with the values before and now."""
        found = []
        for name, (where, key, before) in self._kept.items():
            now = where.get(key, _MISSING)
            if now is not before and (type(now) is not type(before) or now != before):
                found.append((name, before, "gone" if now is _MISSING else now))
                self._kept[name] = where, key, now
        return found

    def globals(self) -> dict[tuple[str, str], Any]:
        """Return those that are globals of a module, by the names of both."""
        return {
            (where["__name__"], key): value
            for where, key, value in self._kept.values()
            if getattr(sys.modules.get(where.get("__name__", "")), "__dict__", None) is where
        }

    def _walk(self, value: Any) -> None:
        """Look at a function or a class, and at those that it leads to."""
        if id(value) in self._seen or not _of_user(value):
            return
        self._seen.add(id(value))
        if isinstance(value, type):
            for base in value.__mro__[1:]:
                self._walk(base)
            for key, member in vars(value).items():
                if not key.startswith("__"):
                    self._look(f"{value.__qualname__}.{key}", vars(value), key)
                for function in _functions(member):
                    self._walk(function)
        else:
            for name in names_used(value.__code__):
                if name in value.__globals__:
                    self._look_at_global(value, name)

    def _look_at_global(self, function: FunctionType, name: str) -> None:
        found = function.__globals__[name]
        if isinstance(found, ModuleType) and _of_user(found):
            for key in names_used(function.__code__):
                if key in vars(found):
                    self._look(f"{name}.{key}", vars(found), key)
        elif isinstance(found, FunctionType | type):
            self._walk(found)
        else:
            self._look(f"{function.__module__}.{name}", function.__globals__, name)

    def _look(self, name: str, where: Mapping[str, Any], key: str) -> None:
        value = where[key]
        if isinstance(value, _PLAIN):
            self._kept[name] = where, key, value
        elif isinstance(value, dict):
            for inner, one in value.items():
                if isinstance(one, _PLAIN):
                    self._kept[f"{name}[{inner!r}]"] = value, inner, one


def _of_user(value: Any) -> bool:
    """Whether a function, a class or a module is of the user's own code: of a script, a notebook, or a file not installed."""
    module = value if isinstance(value, ModuleType) else sys.modules.get(value.__module__ or "")
    file = getattr(module, "__file__", None)
    # What has no file is of Python itself, unless somebody types it.
    return is_users(file) if file is not None else getattr(module, "__name__", None) == "__main__"


def _functions(member: Any) -> Iterator[FunctionType]:
    """Yield the functions that a member of a class is made of."""
    inner: tuple[Any, ...] = (member,)
    if isinstance(member, property):
        inner = member.fget, member.fset, member.fdel
    elif isinstance(member, staticmethod | classmethod):
        inner = (member.__func__,)
    yield from (one for one in inner if isinstance(one, FunctionType))
