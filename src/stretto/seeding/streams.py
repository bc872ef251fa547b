"""Random streams by identity.

A stream is named by a path (root seed, then strings and numbers), never by who draws from it or when, so that
results do not depend on the number of workers or on the order in which they finish.
"""

from __future__ import annotations

import hashlib

import numpy as np

Key = int | str

SEED_BITS = 31  # fits every generator in use: np.random.seed takes 32 bits, some C libraries a signed int


class SeedTree:
    """A place in the tree of random streams that one root seed opens.

    >>> SeedTree(7).child("episode", 3).seed() == SeedTree(7).child("episode").child(3).seed()
    True
    """

    __slots__ = ("_path", "root")

    def __init__(self, root: int, _path: tuple[Key, ...] = ()) -> None:
        self.root = int(root)
        self._path = _path

    def child(self, *keys: Key) -> SeedTree:
        """Return the stream below this one that `keys` name."""
        return SeedTree(self.root, self._path + keys)

    def entropy(self) -> int:
        """Return the 128 bits that this place stands for."""
        # The type and the length stand before each key, so that ("ab", 1) and ("a", "b1") differ.
        text = "".join(f"{type(key).__name__}:{len(str(key))}:{key};" for key in (self.root, *self._path))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")

    def seed(self) -> int:
        """Return a seed of 31 bits, for code that wants an int."""
        return self.entropy() & ((1 << SEED_BITS) - 1)

    def generator(self) -> np.random.Generator:
        """Return a fresh numpy generator at the start of this stream."""
        return np.random.Generator(np.random.PCG64(self.entropy()))

    def __repr__(self) -> str:
        return f"SeedTree({'/'.join(map(str, (self.root, *self._path)))})"


def episode_seed(slot_seed: int, episode: int) -> int:
    """Return the seed of a slot's `episode`: the slot's own for the first, a key of its own for each later one."""
    return slot_seed if episode == 0 else SeedTree(slot_seed).child("episode", episode).seed()
