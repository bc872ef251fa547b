"""Random numbers of choices: many streams at once, each a function of its key and of a counter alone.

Whoever chooses for many agents in one pass needs numbers that do not depend on who else is in the batch. A generator
object for each agent and step costs 44 µs; here a number is a hash of the stream's key and of how many were drawn
before, computed for all streams at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.seeding.streams import SeedTree

Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]

DRAWS_A_STEP = 1 << 20
"""How far apart the counters of two steps are: a choice may draw fewer numbers than that."""

# The constants and the order of operations are those of Steele, Lea and Flood's SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_LOW_BITS = np.uint64(11)


def stream_key(tree: SeedTree) -> int:
    """Return the key of the stream at a place in the tree."""
    return tree.entropy() & 0xFFFF_FFFF_FFFF_FFFF


class Choices:
    """The random numbers of one choice of many agents: an array of any shape has an agent's key and step at each place.

    Numbers depend on key and step alone. Asked twice, they are the same: draw all that a choice needs in one call, or
    name further calls of the same choice by `part`.
    """

    def __init__(self, keys: Keys, steps: NDArray[np.int64]) -> None:
        self._state = keys + (steps.astype(np.uint64) * np.uint64(DRAWS_A_STEP)) * _GOLDEN

    def uniform(self, count: int, part: int = 0) -> Floats:
        """Return numbers of at least 0 and less than 1, with a last axis of `count`."""
        return (self._bits(count, part) >> _LOW_BITS).astype(np.float64) * 2.0**-53

    def normal(self, count: int, part: int = 0) -> Floats:
        """Return numbers of the standard normal distribution, with a last axis of `count`."""
        pairs = -(-count // 2)
        numbers = self.uniform(2 * pairs, part)
        radius = np.sqrt(-2.0 * np.log1p(-numbers[..., :pairs]))
        angle = (2.0 * np.pi) * numbers[..., pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)[..., :count]

    def _bits(self, count: int, part: int) -> Keys:
        counters = np.arange(part * 1024 + 1, part * 1024 + count + 1, dtype=np.uint64) * _GOLDEN
        z: Keys = self._state[..., None] + counters
        z = (z ^ (z >> _SHIFTS[0])) * _FIRST
        z = (z ^ (z >> _SHIFTS[1])) * _SECOND
        z ^= z >> _SHIFTS[2]
        return z
