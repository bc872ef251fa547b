"""How an agent's policy begins an episode, whichever arguments its `reset` takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from stretto.core import AgentPolicy

__calls_user_code__ = True

_ResetCall = Callable[[Any, np.random.Generator], object]
_reset_calls: WeakKeyDictionary[FunctionType, _ResetCall] = WeakKeyDictionary()


def reset_policy(agent_policy: Any, rng: np.random.Generator) -> None:
    """Begin an episode: call `reset` with the generator, or without if it takes none, or not at all if there is none.

    One that takes a `seed` and no `rng` is given a whole number from the generator. An `AgentPolicy` has its `rng` whether
    or not its own `reset` calls that of its base.
    """
    if isinstance(agent_policy, AgentPolicy):
        with suppress(AttributeError):  # of one that is frozen, or has a property of that name
            agent_policy.rng = rng
    reset = getattr(agent_policy, "reset", None)
    if reset is None:
        return
    function = getattr(reset, "__func__", reset)
    if not isinstance(function, FunctionType):  # other callables need not be hashable, nor can all be held weakly
        _reset_call(reset)(reset, rng)
        return
    call = _reset_calls.get(function)
    if call is None:
        call = _reset_calls[function] = _reset_call(reset)
    call(reset, rng)


def _reset_call(reset: Any) -> _ResetCall:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except ValueError:  # some that are written in C do not say what they take
        return lambda reset, rng: reset(rng)
    named = {p.name: p.kind for p in parameters}
    if "seed" in named and "rng" not in named:
        if named["seed"] is inspect.Parameter.POSITIONAL_ONLY:
            return lambda reset, rng: reset(_seed(rng))
        return lambda reset, rng: reset(seed=_seed(rng))
    if any(p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL} for p in parameters):
        return lambda reset, rng: reset(rng)
    if any(p.name == "rng" for p in parameters):
        return lambda reset, rng: reset(rng=rng)
    return lambda reset, rng: reset()


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 31))  # which every library takes
