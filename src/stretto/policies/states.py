"""Hidden states of many agents at once: arrays with a row for each agent, in whatever structure a policy keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

State = Any
"""Arrays in tuples, lists, named tuples and dicts; `None` where a policy remembers nothing."""


def map_state(function: Callable[..., Any], *states: State) -> State:
    """Call `function` with the arrays at each place of states of one structure, and put together what it returns."""
    first = states[0]
    if isinstance(first, np.ndarray):  # before all else: what comes of an instance check of a Mapping costs 3 µs
        return function(*states)
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {key: map_state(function, *(state[key] for state in states)) for key in first}
    if isinstance(first, (tuple, list)):
        parts = [map_state(function, *several) for several in zip(*states, strict=True)]
        return type(first)._make(parts) if hasattr(first, "_make") else type(first)(parts)
    return function(*states)
