"""Code that users name: modules, Python files wherever they lie, and what is in them."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from stretto.errors import UsageError
from stretto.registry import near, near_or_all

_loading = threading.RLock()


def imported(where: str, name: str, role: str, otherwise: str = "") -> Any:
    """Return what is called `name`, with dots for what is inside a class, in a module or in a file that ends in `.py`.

    `role` is what it is to the user, such as "policy": it is in the message if there is no such thing. A module that does
    not have it may have what is called `otherwise`.
    """
    try:
        module = module_from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise  # something that the module itself needs
        raise not_importable(where, role) from error
    if otherwise and not hasattr(module, name) and hasattr(module, otherwise):
        name = otherwise
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        there = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
        raise UsageError(
            f"a {role} must be in its module, got {name!r}, which {where} does not have{near_or_all(name, there)}"
        ) from None


def not_importable(where: str, role: str) -> UsageError:
    """Say that there is no such module."""
    return UsageError(f"a {role}'s module must be importable, got {where!r}; install it, or write file.py:NAME")


def module_from_file(path: Path) -> ModuleType:
    """Import a file as a module of its own, once for as long as it stays as it is; it can import its neighbours."""
    source = path.read_bytes()
    # Named by what it holds: a file that was changed since is loaded anew.
    name = f"{path.stem}_{hashlib.sha256(bytes(path) + source).hexdigest()[:12]}"
    with _loading:
        if name in sys.modules:
            return sys.modules[name]
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # last: it can import its neighbours, and they hide nothing
        module = ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # dataclasses and pickle look for it there
        try:
            exec(compile(source, path, "exec", dont_inherit=True), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        return module


def parameters_of(function: Callable[..., Any]) -> list[str] | None:
    """Return the parameters that can be given by name; `None` if it takes any, or does not say which."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some that are written in C do not say what they take
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return [one.name for one in parameters if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}]


def check_parameters(
    function: Callable[..., Any],
    given: Iterable[str],
    what: str,
    *,
    also: Iterable[str] = (),
    without: Iterable[str] = (),
) -> None:
    """Refuse names that a function or class has no parameter for; `what` is how its user calls it.

    Names in `also` are for somebody else. Parameters in `without` are not for its user to give.
    """
    there = parameters_of(function)
    if there is None:
        return
    free, others = [name for name in there if name not in without], set(also)
    if unknown := [name for name in given if name not in free and name not in others]:
        raise UsageError(
            f"arguments must be parameters of what they are for, got {', '.join(unknown)} for {what}, "
            f"which takes {', '.join(free) or 'none'}{near(unknown[0], free)}"
        )
