"""The arguments of make_vec and of resets, checked, and translated where they are named as in Gymnasium."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import VectorizeMode
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces

from stretto.core import AUTO, SPECULATIVE, TURNS
from stretto.envs.messages import Built
from stretto.errors import InvalidLayout, InvalidSpace, UsageError
from stretto.registry import near
from stretto.spaces import same_layout, same_space

Wrappers = Sequence[Callable[[Any], Any]]
Space = spaces.Space[Any]
ObservationMode = str | tuple[Space, Space]
"""`"same"`, `"different"`, or the spaces of a batch and of one observation, in this order."""


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


def check_known(misplaced: Mapping[str, Any], options: Iterable[str], function: str = "make_vec") -> None:
    """Refuse arguments that make_vec, or another function that has its options, does not have.

    `gymnasium.make_vec` gives such to the environments, where a misspelled option of its own ends up too.
    """
    for name, value in misplaced.items():
        raise UsageError(
            f"{function} has no argument {name!r}; what a world is made with belongs into "
            f"env_kwargs={{{name!r}: {value!r}}}{near(name, options)}"
        )


def check_words(**words: tuple[str, tuple[str, ...]]) -> None:
    """Raise unless each word is one that is known."""
    for name, (value, known) in words.items():
        if value not in known:
            raise UsageError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")


def check_turns(turns: str) -> None:
    """Raise unless these are turns that a world is played in by whoever has no policies."""
    if turns in (SPECULATIVE, AUTO):
        known = ", ".join(map(repr, TURNS))
        raise UsageError(
            f"turns must be one of {known}, got {turns!r}: that asks policies, which a vector environment does not have; "
            f"pass 'sequential' here, or turns={turns!r} to evaluate, collect or train"
        )
    check_words(turns=(turns, TURNS))


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


def needs_single_worlds(seeds: Sequence[int | None], options: Any, slots: Sequence[int], count: int) -> str | None:
    """Say what in a reset of slots, out of so many, cannot be done by worlds that are batched; `None`: nothing.

    Those are reset all at once, with one seed and the same options.
    """
    first = seeds[0]
    if len(slots) < count:
        return "a reset of some slots"
    if list(seeds) != ([None] * count if first is None else list(range(first, first + count))):
        return "a seed for each slot"
    return None if options is None or isinstance(options, dict) else "a sequence of options"


# --- observation_mode: how the spaces of all slots become those of the vector environment ---


def check_observation_mode(mode: Any) -> None:
    """Raise unless this is an observation mode."""
    pair = isinstance(mode, tuple) and len(mode) == 2 and all(isinstance(one, spaces.Space) for one in mode)
    if not pair and mode not in ("same", "different"):
        raise UsageError(
            f"observation_mode must be 'same', 'different' or a tuple of two spaces, of a batch and of one observation, "
            f"got {mode!r}"
        )


def agree(built: Sequence[Built], first_slots: Sequence[int], count: int, mode: ObservationMode) -> Built:
    """Return what the worlds of all groups are like together.

    Raises:
        InvalidSpace: with the first slot whose spaces do not fit.
    """
    head = built[0]
    if mode != "same" and head.agents is not None:
        raise UsageError(f"worlds with several agents must have observation_mode='same', got {mode!r}; leave it out")
    batched, single = mode if isinstance(mode, tuple) else (None, head.observation_space)
    own: dict[int, tuple[Space, Space]] = {}
    for one, first in zip(built, first_slots, strict=True):
        own |= {first: (one.observation_space, one.action_space), **one.others}
    for slot, (observed, acted) in sorted(own.items()):
        fits = same_space(observed, single) if mode == "same" else same_layout(observed, single)
        if not fits:
            where = "in slot 0" if batched is None else "in observation_mode"
            name = "observation_space" if mode == "same" else "types and shapes in their observation_space"
            _refuse(name, slot, observed, f"{single} {where}", _remedy(mode, observed, single))
        if not same_space(acted, head.action_space):
            _refuse("action_space", slot, acted, f"{head.action_space} in slot 0", "wrap them so that they agree")
    if mode == "different":
        batched = _batch_of(_by_slot(own, first_slots, count))
    return dataclasses.replace(head, observation_space=single, observation_batch=batched)


def _by_slot(own: Mapping[int, tuple[Space, Space]], first_slots: Sequence[int], count: int) -> list[Space]:
    """Return the observation space of each slot: its own, or that of the first slot of its group."""
    found: list[Space] = []
    head = own[0][0]
    for slot in range(count):
        if slot in first_slots:
            head = own[slot][0]
        found.append(own[slot][0] if slot in own else head)
    return found


def _batch_of(each: Sequence[Space]) -> Space:
    try:
        return batch_differing_spaces(each)
    except (TypeError, ValueError) as error:
        raise InvalidSpace(
            f"observation_mode='different' needs spaces that Gymnasium can batch, got {each[0]}: {error}; pass a tuple of "
            f"spaces instead"
        ) from None


def _remedy(mode: ObservationMode, observed: Space, single: Space) -> str:
    if mode == "same" and same_layout(observed, single):
        return "wrap them so that they agree, or pass observation_mode='different'"
    return "wrap them so that they agree"


def _refuse(name: str, slot: int, got: Space, wanted: str, remedy: str) -> None:
    raise InvalidSpace(
        f"all environments of a vector must have the same {name}, got {got} in slot {slot} and {wanted}; {remedy}"
    )
