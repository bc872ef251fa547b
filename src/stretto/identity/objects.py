"""What an object is that a program passes as a policy or a world: its code, and the values that it holds.

Of a function the compiled code counts, with its defaults and what it closes over; of a class its methods and attributes; of
any other object its class and its attributes, arrays and tensors bit by bit. The module that code was imported from counts
as its file does. Code of a main program or a notebook has no file of its own (the file also says how many episodes to
play): there, the globals that it uses count instead.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np

from stretto.identity.owners import is_users
from stretto.identity.source import DIGEST_CHARACTERS, Sources, find_module

MOST_VALUES = 100_000
"""How many values are looked at; what holds more is not covered."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_OF_EVERY_CLASS = {"__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"}
_CACHES = {"_abc_impl", "__hash__"}


class ObjectDigest:
    """Digests objects, and adds the files and packages that their code comes from to `sources`.

    `not_covered` names the types of values that nothing is known of.
    """

    def __init__(self, sources: Sources) -> None:
        self.not_covered: set[str] = set()
        self._sources, self._hash = sources, hashlib.sha256()
        self._places: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of one that was seen

    def hexdigest(self) -> str:
        """Return the digest of all that was added."""
        return self._hash.hexdigest()[:DIGEST_CHARACTERS]

    def add(self, value: Any) -> None:
        """Add a value with all that it holds."""
        if isinstance(value, _PLAIN):
            self._tell(type(value).__name__, repr(value))
            return
        if id(value) in self._places:
            self._tell("seen", self._places[id(value)])
            return
        if len(self._places) >= MOST_VALUES:
            self.not_covered.add(f"more than {MOST_VALUES} values")
            return
        self._places[id(value)] = len(self._places)
        self._kept.append(value)
        self._add_new(value)

    def _add_new(self, value: Any) -> None:
        held = _held(value)
        if held is not None:
            self._add_all(type(value).__name__, held)
            return
        match value:
            case np.ndarray() | np.generic():
                self._add_array(np.asarray(value))
            case PurePath():  # which keeps its text in attributes that are filled when they are first needed
                self._tell("path", str(value))
            case ModuleType():
                self._tell("module", value.__name__)
                self._add_module(value.__name__)
            case FunctionType():
                self._add_function(value)
            case BuiltinFunctionType():
                self._tell("built in", value.__module__, value.__qualname__)
                self.add(value.__self__)
            case CodeType():
                self._add_code(value)
            case type():
                self._add_class(value)
            case _:
                self._add_object(value)

    def _tell(self, *facts: object) -> None:
        self._hash.update(repr(facts).encode("utf-8", "backslashreplace"))

    def _add_all(self, kind: str, values: Iterable[Any]) -> None:
        values = list(values)
        self._tell(kind, len(values))
        for value in values:
            self.add(value)

    def _add_array(self, array: np.ndarray[Any, Any]) -> None:
        self._tell("array", array.dtype.str, array.shape)
        if array.dtype.hasobject:
            self._add_all("objects", array.ravel().tolist())
        else:
            self._hash.update(np.ascontiguousarray(array).tobytes())

    def _add_function(self, function: FunctionType) -> None:
        self._tell("function", function.__qualname__)
        cells = [cell for one in function.__closure__ or () for cell in _contents(one)]
        self._add_all("parts", [function.__code__, function.__defaults__, function.__kwdefaults__, cells])
        if self._has_no_file(function.__module__):
            found = function.__globals__
            self._add_all(
                "globals", [(name, found[name]) for name in sorted(names_used(function.__code__)) if name in found]
            )

    def _add_code(self, code: CodeType) -> None:
        self._tell("code", code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._tell(code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self._add_all("constants", code.co_consts)

    def _add_class(self, kind: type) -> None:
        self._tell("class", kind.__module__, kind.__qualname__)
        alone = self._has_no_file(kind.__module__)
        if alone or is_users(_file_of(kind.__module__)):
            own = {name: value for name, value in vars(kind).items() if name not in _OF_EVERY_CLASS | _CACHES}
            self._add_all("bases", kind.__bases__)
            self._add_all("attributes", [(name, own[name]) for name in sorted(own)])

    def _has_no_file(self, module: str | None) -> bool:
        """Whether code of a module must tell all by itself; if not, the module's file or package is added."""
        if module is None or module == "__main__" or module not in sys.modules:
            return True
        self._add_module(module)
        return False

    def _add_module(self, name: str) -> None:
        file = _file_of(name)
        spec = find_module(name)
        if file is not None and is_users(file) and (spec is None or spec.origin != file):
            self._sources.add_file(Path(file))  # one that was loaded from a file, wherever it lies
        else:
            self._sources.add_module(name)

    def _add_object(self, value: Any) -> None:
        kind = type(value)
        self.add(kind)
        if hasattr(kind, "detach") and hasattr(kind, "numpy"):  # a tensor of torch
            self._add_tensor(value)
            return
        state = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
        state |= getattr(value, "__dict__", {})
        if state:
            self.add(state)
        elif " at 0x" not in (text := repr(value)):
            self._tell("text", text)
        elif kind.__module__ != "__main__" and not is_users(_file_of(kind.__module__)):
            self.not_covered.add(f"{kind.__module__}.{kind.__qualname__}")

    def _add_tensor(self, value: Any) -> None:
        try:
            self._add_array(value.detach().cpu().numpy())
        except TypeError:  # numbers that numpy has none of; 32 bits hold them
            self._add_array(value.detach().cpu().float().numpy())


def _held(value: Any) -> list[Any] | None:
    """Return the parts of a value that is nothing but its parts."""
    match value:
        case list() | tuple():
            return list(value)
        case set() | frozenset():
            return sorted(value, key=repr)
        case dict() | MappingProxyType():
            return [part for item in value.items() for part in item]
        case MethodType():
            return [value.__func__, value.__self__]
        case staticmethod() | classmethod():
            return [value.__func__]
        case property():
            return [value.fget, value.fset, value.fdel]
        case functools.partial():
            return [value.func, value.args, value.keywords]
        case np.random.Generator():
            return [value.bit_generator.state]
        case _:
            return None


def _contents(cell: Any) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not filled yet
        return []


def names_used(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that a function, or one that is defined in it, may read."""
    return set(code.co_names).union(*(names_used(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _slots(kind: type) -> list[str]:
    found = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    return [name for slots in found for name in ([slots] if isinstance(slots, str) else slots)]


def _file_of(module: str) -> str | None:
    """Return the file that a module was imported from; a cell of a notebook has none that stays."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if file is not None and Path(file).is_file() else None
