"""The arrays of all slots, by role; which numbers stand for steps; and copies of large arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stretto.spaces import Array, SpaceLayout, Target

STEP_ALL = 0
"""Signal: step every world; `STEP_ALL + buffer`. For a step of one world see `step_one`."""

BUFFERS = 2

INFO_BYTES = 256
"""The room for a slot's infos: about 28 numbers, each with a byte that says whether it is there."""


def step_one(i: int, buffer: int) -> int:
    """Return the signal that steps world `i` of a worker."""
    return BUFFERS * (i + 1) + buffer


def array_shapes(
    observations: SpaceLayout, actions: SpaceLayout, count: int
) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return the arrays of `count` slots: twice observations, rewards and flags, then actions, and room for infos."""
    flag = np.dtype(np.bool_)
    once = [*observations.shapes(count), ((count,), np.dtype(np.float64)), ((count,), flag), ((count,), flag)]
    return [*once * BUFFERS, *actions.shapes(count), ((count, INFO_BYTES), np.dtype(np.uint8))]


@dataclass(slots=True)
class Buffers:
    """The arrays of `array_shapes`, by role."""

    observations: list[list[Array]]
    rewards: list[Array]
    terminated: list[Array]
    truncated: list[Array]
    actions: list[Array]
    info_room: Array | None = None

    @classmethod
    def of(cls, arrays: list[Array], leaves: int) -> Buffers:
        size = leaves + 3
        sets = [arrays[b * size : (b + 1) * size] for b in range(BUFFERS)]
        return cls(
            observations=[s[:leaves] for s in sets],
            rewards=[s[leaves] for s in sets],
            terminated=[s[leaves + 1] for s in sets],
            truncated=[s[leaves + 2] for s in sets],
            actions=arrays[BUFFERS * size : -1],
            info_room=arrays[-1],
        )

    def part(self, first: int, count: int) -> Buffers:
        """Return the rows of some slots, as views."""
        span = slice(first, first + count)
        return Buffers(
            observations=[[a[span] for a in arrays] for arrays in self.observations],
            rewards=[a[span] for a in self.rewards],
            terminated=[a[span] for a in self.terminated],
            truncated=[a[span] for a in self.truncated],
            actions=[a[span] for a in self.actions],
            info_room=None if self.info_room is None else self.info_room[span],
        )


@dataclass(slots=True)
class Rows:
    """Where a group writes the results of a step: row `i` belongs to its world `i`.

    Numbers and flags are memoryviews: so few bytes are copied with less around it than numpy needs.
    """

    target: Target
    rewards: memoryview[float]
    terminated: memoryview[int]
    truncated: memoryview[int]

    @classmethod
    def of(cls, target: Target, rewards: Array, terminated: Array, truncated: Array) -> Rows:
        flags = [memoryview(cast(Any, array.view(np.uint8))) for array in (terminated, truncated)]
        return cls(target, memoryview(cast(Any, rewards)), *flags)


LARGE_BYTES = 1 << 16
"""Below this a fresh copy is as fast. Above it most of the time goes into pages that the system clears first."""

_KEPT = 4


def _references_of_an_unused() -> int:
    """Count the references to an array that only our list has: it differs between versions of Python."""
    for kept in [np.zeros(1)]:
        return sys.getrefcount(kept)
    raise AssertionError("unreachable")


_UNUSED = _references_of_an_unused()


class Copier:
    """Copies one array again and again; a caller that keeps a copy keeps it for good."""

    def __init__(self) -> None:
        self._kept: list[Array] = []

    def copy(self, array: Array) -> Array:
        """Return a copy that nobody else has."""
        if array.nbytes < LARGE_BYTES:
            return array.copy()
        for kept in self._kept:
            # Views, tensors and memoryviews of an array count as references to it.
            if sys.getrefcount(kept) == _UNUSED:
                np.copyto(kept, array)
                return kept
        fresh = array.copy()
        if len(self._kept) < _KEPT:
            self._kept.append(fresh)
        return fresh


def copiers(arrays: Sequence[Array]) -> list[Copier]:
    """Return a copier for each array."""
    return [Copier() for _ in arrays]
