"""Rollouts: a set of them, in the order of their indices."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stretto.collection.experience import Rollout
from stretto.collection.files import save_rollouts
from stretto.collection.stored import StoredRollouts
from stretto.spaces import Array


class Rollouts(Sequence[Rollout]):
    """Rollouts in the order of their indices."""

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        stored = isinstance(rollouts, StoredRollouts)  # in order, and not to be read before somebody looks
        self._rollouts = rollouts if stored else sorted(rollouts, key=lambda one: one.index)

    def __len__(self) -> int:
        return len(self._rollouts)

    def __getitem__(self, index: Any) -> Any:
        found = self._rollouts[index]
        return Rollouts(found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self._rollouts)

    @property
    def lengths(self) -> Array:
        """How many steps each has."""
        some = self._rollouts
        return np.array(some.lengths if isinstance(some, StoredRollouts) else [len(one) for one in some], np.int64)

    @property
    def returns(self) -> Array:
        """The sum of rewards of each, over all its agents."""
        return np.array([sum(one.returns.values()) for one in self])

    @property
    def tasks(self) -> list[Any]:
        """The task of each."""
        return [one.task for one in self]

    def digest(self) -> str:
        """Return a sha256 of all of them."""
        return joint_digest(one.digest() for one in self)

    def save(self, folder: str | os.PathLike[str], form: str = "safetensors") -> None:
        """Write them into a folder, as safetensors or npz with JSON; `stretto.load_rollouts` reads them.

        Raises:
            UsageError: if a task or an observation cannot be written exactly.
        """
        save_rollouts(self._rollouts, folder, form)

    def __repr__(self) -> str:
        return f"Rollouts({len(self)} rollouts, {int(self.lengths.sum())} steps)"


def joint_digest(digests: Iterable[str]) -> str:
    """Return the digest of a set of rollouts that have these."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def load_rollouts(folder: str | os.PathLike[str]) -> Rollouts:
    """Return rollouts that `Rollouts.save` or `stretto collect` wrote; each is read when it is looked at.

    Raises:
        UsageError: if there are none, or if a file is damaged (`DamagedCheckpoint`).
    """
    return Rollouts(StoredRollouts.in_folder(Path(folder)))
