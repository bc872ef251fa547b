"""Copies of large arrays, in memory that is used again once nobody refers to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from stretto.spaces import Array

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
