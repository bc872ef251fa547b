"""The arguments of make_vec, checked, and translated where they are named as in Gymnasium; and ids of environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.registration import VectorizeMode
from gymnasium.vector import AutoresetMode

from stretto.errors import InvalidLayout, UsageError
from stretto.registry import near

Wrappers = Sequence[Callable[[Any], Any]]


def autoreset_mode_of(mode: AutoresetMode | str) -> AutoresetMode:
    """Return the mode of that name or value, in any spelling: `"NEXT_STEP"`, `"NextStep"`, `"next_step"`."""
    for known in AutoresetMode:
        if mode is known or _spelled_alike(str(mode), known.value):
            return known
    names = ", ".join(repr(known.value) for known in AutoresetMode)
    raise UsageError(f"autoreset_mode must be one of {names}, got {mode!r}")


def _spelled_alike(one: str, other: str) -> bool:
    return one.replace("_", "").lower() == other.lower()


def number_of_envs(source: Any, num_envs: int | None) -> int:
    """Return how many environments there are: where it is not said, one, or as many as there are factories in a list."""
    if num_envs is None:
        return len(source) if isinstance(source, Sequence) and not isinstance(source, str) else 1
    return num_envs


def with_render_mode(env_kwargs: Mapping[str, Any] | None, render_mode: str | None) -> dict[str, Any]:
    """Return what environments are made with."""
    if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
        raise UsageError(f"env_kwargs must be a mapping from names to values, got {env_kwargs!r}")
    kwargs = dict(env_kwargs or {})
    if render_mode is None:
        return kwargs
    if kwargs.setdefault("render_mode", render_mode) != render_mode:
        raise UsageError(
            f"a render mode must be given once, got render_mode={render_mode!r} and {kwargs['render_mode']!r} in env_kwargs"
        )
    return kwargs


_MODES: Mapping[VectorizeMode, tuple[str, bool]] = {
    VectorizeMode.SYNC: ("serial", False),
    VectorizeMode.ASYNC: ("process", False),
    VectorizeMode.VECTOR_ENTRY_POINT: ("auto", True),
}


def from_vectorization_mode(
    mode: VectorizeMode | str | None, backend: str, vectorized: bool | int | None
) -> tuple[str, bool | int | None]:
    """Return `backend` and `vectorized` as Gymnasium's `vectorization_mode` says them."""
    if mode is None:
        return backend, vectorized
    try:
        known = VectorizeMode(mode)
    except ValueError:
        names = ", ".join(repr(one.value) for one in VectorizeMode)
        raise UsageError(f"vectorization_mode must be one of {names}, got {mode!r}") from None
    means, batched = _MODES[known]
    if batched:
        return backend, vectorized or True
    if backend not in ("auto", means) or vectorized:
        given = f"vectorized={vectorized!r}" if vectorized else f"backend={backend!r}"
        raise UsageError(f"vectorization_mode={known.value!r} means backend={means!r}, got {given} too; leave one out")
    return means, False


_ELSEWHERE = {
    "context": "workers are forked from a launcher of their own, whatever the start method",
    "daemon": "workers end with the caller, and may have children of their own",
    "worker": "what a worker does with an environment can be changed by wrappers=",
    "max_concurrency": "workers= of make_vec says how many environments are stepped at a time",
}


def from_vector_kwargs(vector_kwargs: Mapping[str, Any] | None, **ours: Any) -> list[Any]:
    """Return the values of our own arguments, replaced by those that Gymnasium's `vector_kwargs` names."""
    given = dict(vector_kwargs or {})
    if given.pop("shared_memory", True) is False:
        given["transport"] = "message"
    for name in given:
        if name in _ELSEWHERE:
            raise UsageError(f"vector_kwargs={{{name!r}: ...}} has no place here: {_ELSEWHERE[name]}; leave it out")
        if name not in ours:
            known = ", ".join(map(repr, (*ours, "shared_memory")))
            raise UsageError(f"vector_kwargs may have {known}, got {name!r}; other options are arguments of make_vec")
    return [given.get(name, value) for name, value in ours.items()]


def check_known(misplaced: Mapping[str, Any], options: Iterable[str]) -> None:
    """Refuse arguments that make_vec does not have.

    `gymnasium.make_vec` gives such to the environments, where a misspelled option of its own ends up too.
    """
    for name, value in misplaced.items():
        raise UsageError(
            f"make_vec has no argument {name!r}; what a world is made with belongs into "
            f"env_kwargs={{{name!r}: {value!r}}}{near(name, options)}"
        )


def check_words(**words: tuple[str, tuple[str, ...]]) -> None:
    """Raise unless each word is one that is known."""
    for name, (value, known) in words.items():
        if value not in known:
            raise UsageError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")


def check_limits(**limits: Any) -> None:
    """Raise unless each limit of time is a number of seconds, or `None`."""
    for name, value in limits.items():
        if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0):
            raise UsageError(f"{name} must be a number of more than 0, or None for no limit, got {value!r}")


def check_whole(**numbers: tuple[Any, int | None]) -> None:
    """Raise unless each number is whole, and as large as it must be at least."""
    for name, (value, least) in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise InvalidLayout(f"{name} must be a whole number, got {value!r}")
        if least is not None and value < least:
            raise InvalidLayout(f"{name} must be at least {least}, got {value}")


def check_tasks(tasks: Any) -> None:
    """Raise unless this is a source of tasks, or `None`."""
    if tasks is not None and not callable(tasks) and (not isinstance(tasks, Sequence) or not tasks):
        raise UsageError(
            f"tasks must be a function (slot, episode, stream) -> task, or a sequence with some, got {tasks!r}"
        )


def slots_of(ids: Any, count: int) -> list[int]:
    """Return the slots that some ids mean; `None` stands for all."""
    if ids is None:
        return list(range(count))
    try:
        given = list(ids)
    except TypeError:
        given = [None]
    whole = all(isinstance(one, (int, np.integer)) and not isinstance(one, (bool, np.bool_)) for one in given)
    if not whole or len(set(given)) != len(given) or not all(0 <= one < count for one in given):
        raise UsageError(f"ids must be different and from 0 to {count - 1}, got {ids!r}")
    return [int(one) for one in given]
