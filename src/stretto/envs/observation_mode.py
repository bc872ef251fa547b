"""How the spaces of all slots become those of the vector environment: what Gymnasium calls its `observation_mode`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces
from gymnasium.vector.utils import batch_differing_spaces

from stretto.envs.messages import Built
from stretto.errors import InvalidSpace, UsageError
from stretto.spaces import same_layout, same_space

Space = spaces.Space[Any]
ObservationMode = str | tuple[Space, Space]
"""`"same"`, `"different"`, or the spaces of a batch and of one observation, in this order."""


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
