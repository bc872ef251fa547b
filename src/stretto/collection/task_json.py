"""Tasks as JSON: numbers, texts, arrays and what is made of them, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stretto.errors import UsageError


def encoded(value: Any) -> Any:
    """Return a task as JSON can hold it, exactly.

    Raises:
        UsageError: if that cannot be.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return {"array": [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes().hex()]}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {"scalar": [value.dtype.str, value.tobytes().hex()]}
    if type(value) is dict:
        return {"dict": [[encoded(key), encoded(part)] for key, part in value.items()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [encoded(part) for part in value]}
    raise UsageError(
        f"a task that is written to a file is made of numbers, texts, arrays, lists, tuples and dicts, got "
        f"{type(value).__name__}; give such a task, or do not write it"
    )


def decoded(value: Any) -> Any:
    """Return the task that `encoded` gave."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    makers: dict[str, Callable[[Any], Any]] = {
        "array": lambda c: np.frombuffer(bytes.fromhex(c[2]), np.dtype(c[0])).reshape(c[1]).copy(),
        "scalar": lambda c: np.frombuffer(bytes.fromhex(c[1]), np.dtype(c[0]))[0],
        "dict": lambda c: {decoded(key): decoded(part) for key, part in c},
        "list": lambda c: [decoded(part) for part in c],
        "tuple": lambda c: tuple(decoded(part) for part in c),
    }
    return makers[kind](content)
