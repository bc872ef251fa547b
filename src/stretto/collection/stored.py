"""Rollouts that lie on disk, each read when it is looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stretto.checkpoint import read_folder
from stretto.collection.experience import COLUMNS, Experience, Rollout, count_steps
from stretto.collection.files import ABOUT, complete_parts
from stretto.collection.task_json import decoded
from stretto.errors import DamagedCheckpoint, UsageError
from stretto.safetensors import map_safetensors
from stretto.spaces import Array

_PARTS_OPEN = 4


class StoredPart:
    """The rollouts of one part. Arrays of safetensors stay on disk until a rollout is looked at; those of npz do not.

    Raises:
        DamagedCheckpoint: if its files are not what was written. Whoever has seen that before need not `check` it again.
    """

    def __init__(self, part: Path, *, check: bool = True) -> None:
        self._part, paths = part, read_folder(part, check=check)
        try:
            self._about = json.loads(paths[ABOUT].read_bytes())
            name = next(name for name in paths if name != ABOUT)
            mapped = name.endswith("safetensors")
            self._arrays = map_safetensors(paths[name]) if mapped else dict(np.load(paths[name]))
            self._rollouts = [(one["index"], tuple(one["ends"])) for one in self._about["rollouts"]]
        except (KeyError, ValueError, TypeError, StopIteration) as error:
            raise _damaged(part, error) from None
        self._first_rows = np.cumsum([0, *(ends[-1] + 1 for _, ends in self._rollouts)]).tolist()

    def __len__(self) -> int:
        return len(self._rollouts)

    @property
    def places(self) -> dict[int, Place]:
        """Where each of its rollouts lies, by index."""
        return {
            index: Place(self._part, number, count_steps(ends)) for number, (index, ends) in enumerate(self._rollouts)
        }

    def rollout(self, number: int) -> Rollout:
        """Read a rollout."""
        rows, one = slice(*self._first_rows[number : number + 2]), self._about["rollouts"][number]
        index, ends = self._rollouts[number]
        try:
            kinds = [
                Experience(tuple(agents), **{name: self._column(columns[name], rows) for name in COLUMNS})
                for agents, columns in zip(self._about["agents"], self._about["columns"], strict=True)
            ]
            return Rollout(index, one["seed"], decoded(one["task"]), ends, tuple(kinds))
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise _damaged(self._part, error) from None

    def _column(self, structure: Any, rows: slice) -> Any:
        if isinstance(structure, str):
            found: Array = self._arrays[structure][rows]
            return found.astype(found.dtype.newbyteorder("="))
        if "dict" in structure:
            return {key: self._column(part, rows) for key, part in structure["dict"]}
        return tuple(self._column(part, rows) for _, part in structure["tuple"])

    def __iter__(self) -> Iterator[Rollout]:
        return map(self.rollout, range(len(self)))


def _damaged(part: Path, error: Exception) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{part} must hold rollouts, got {error!r}; collect them again")


class Place(NamedTuple):
    """Where a rollout lies: in which part, its number there, and how many steps it has."""

    part: Path
    number: int
    steps: int


class StoredRollouts(Sequence[Rollout]):
    """Rollouts that lie in parts, in the order of their indices. Each is read when it is looked at."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = [place for _, place in sorted(places.items())]
        self._open: dict[Path, StoredPart] = {}

    @classmethod
    def in_folder(cls, folder: Path) -> StoredRollouts:
        """Return the rollouts in a folder, whose files are seen to be as they were written."""
        parts = complete_parts(folder)
        if not parts:
            raise UsageError(f"rollouts are read from a folder that they were written to, got {folder}, which has none")
        return cls({index: place for part in parts for index, place in StoredPart(part).places.items()})

    def __len__(self) -> int:
        return len(self._places)

    @property
    def lengths(self) -> list[int]:
        """How many steps each has."""
        return [place.steps for place in self._places]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return StoredRollouts(dict(enumerate(self._places[index])))
        place = self._places[index]
        part = self._open.pop(place.part, None) or StoredPart(place.part, check=False)
        self._open[place.part] = part  # the last one is the one that was used last
        if len(self._open) > _PARTS_OPEN:
            del self._open[next(iter(self._open))]
        return part.rollout(place.number)
