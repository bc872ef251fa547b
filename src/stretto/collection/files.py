"""Rollouts on disk: parts of many rollouts, each written whole, with numbers in safetensors or npz and the rest in JSON."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stretto.checkpoint import MANIFEST, Content, read_folder, read_safetensors, safetensors, write_folder
from stretto.collection.experience import COLUMNS, Experience, Rollout
from stretto.core import WorldSpec
from stretto.errors import DamagedCheckpoint, UsageError
from stretto.run_folder import PLAN
from stretto.spaces import Array, SpaceLayout

FORMATS = ("safetensors", "npz")

PART_ROWS, PART_BYTES = 100_000, 1 << 26
"""How large a part becomes at most, unless a single rollout is larger."""

_PARTS_IN_MEMORY = 4

_ABOUT = "rollouts.json"


def save_rollouts(rollouts: Sequence[Rollout], folder: str | os.PathLike[str], form: str = "safetensors") -> None:
    """Write rollouts into a folder, in place of what such a call wrote there before."""
    folder = Path(folder)
    if (folder / PLAN).exists():
        raise UsageError(f"{folder} holds a collection, whose rollouts are there already; save into another folder")
    before = all_parts(folder)
    for number, some in enumerate(_portions(rollouts), next_number(folder)):
        write_part(folder, number, some, form)
    for part in before:
        remove_part(part)


def part_rows(rollout: Rollout) -> int:
    """Return how many rows a part has at most, if all rollouts are like this one."""
    size = 0

    def add(array: Array) -> Array:
        nonlocal size
        size += array.nbytes
        return array

    for kind in rollout.kinds:
        kind.map(add)
    return max(1, min(PART_ROWS, PART_BYTES * count_rows(rollout) // max(1, size)))


def count_rows(rollout: Rollout) -> int:
    """Return how many rows a rollout has, with those of last observations."""
    return rollout.ends[-1] + 1


def _portions(rollouts: Sequence[Rollout]) -> Iterator[list[Rollout]]:
    some: list[Rollout] = []
    rows = 0
    for rollout in rollouts:
        count = count_rows(rollout)
        if some and rows + count > part_rows(some[0]):
            yield some
            some, rows = [], 0
        some.append(rollout)
        rows += count
    if some:
        yield some


def write_part(folder: Path, number: int, rollouts: Sequence[Rollout], form: str = "safetensors") -> None:
    """Write some rollouts as one part; whoever is killed meanwhile leaves all of it, or nothing that counts.

    Raises:
        UsageError: if something in them cannot be written exactly.
    """
    if form not in FORMATS:
        raise UsageError(f"rollouts are written as {' or '.join(FORMATS)}, got {form!r}")
    arrays: dict[str, Any] = {}
    structure = [
        {
            name: _apart([getattr(rollout.kinds[k], name) for rollout in rollouts], f"{k}/{name}", arrays)
            for name in COLUMNS
        }
        for k in range(len(rollouts[0].kinds))
    ]
    about = {
        "agents": [list(kind.agents) for kind in rollouts[0].kinds],
        "columns": structure,
        "rollouts": [
            {"index": one.index, "seed": one.seed, "task": encoded(one.task), "ends": list(one.ends)}
            for one in rollouts
        ],
    }
    content: Content = safetensors(arrays)
    if form == "npz":
        file = io.BytesIO()
        save: Any = np.savez
        save(file, **{name: np.concatenate(parts) for name, parts in arrays.items()})
        content = file.getvalue()
    write_folder(folder / f"{number:06d}", {f"rollouts.{form}": content, _ABOUT: json.dumps(about)})


def _apart(values: Sequence[Any], name: str, arrays: dict[str, Any]) -> Any:
    """Take columns of several rollouts apart into arrays with a name each; return how they belong together."""
    first = values[0]
    if isinstance(first, np.ndarray):
        if first.dtype.hasobject:
            raise _unwritable(name.partition("/")[2])
        arrays[name] = list(values)
        return name
    keys: Sequence[Any] = list(first) if isinstance(first, Mapping) else range(len(first))
    found = [[key, _apart([value[key] for value in values], f"{name}/{key}", arrays)] for key in keys]
    return {"dict" if isinstance(first, Mapping) else "tuple": found}


def read_rollouts(folder: str | os.PathLike[str]) -> list[Rollout]:
    """Return the rollouts in a folder."""
    folder = Path(folder)
    parts = complete_parts(folder)
    if not parts:
        raise UsageError(f"rollouts are read from a folder that they were written to, got {folder}, which has none")
    return [rollout for part in parts for rollout in read_part(part)]


def all_parts(folder: Path) -> list[Path]:
    """Return the parts in a folder, also those of which only some was written."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if path.name.isdigit() and path.is_dir())


def complete_parts(folder: Path) -> list[Path]:
    """Return the parts that were written to the end."""
    return [part for part in all_parts(folder) if (part / MANIFEST).is_file()]


def next_number(folder: Path) -> int:
    """Return the number of the next part of a folder."""
    return 1 + max((int(part.name) for part in all_parts(folder)), default=-1)


def read_part(part: Path) -> list[Rollout]:
    """Read the rollouts of one part."""
    paths = read_folder(part)
    try:
        about = json.loads(paths[_ABOUT].read_text())
        name = next(name for name in paths if name != _ABOUT)
        arrays = read_safetensors(paths[name]) if name.endswith("safetensors") else dict(np.load(paths[name]))
        found, first = [], 0
        for one in about["rollouts"]:
            rows = slice(first, first := first + one["ends"][-1] + 1)
            kinds = [
                Experience(tuple(agents), **{name: _together(columns[name], arrays, rows) for name in COLUMNS})
                for agents, columns in zip(about["agents"], about["columns"], strict=True)
            ]
            task = decoded(one["task"])
            found.append(Rollout(one["index"], one["seed"], task, tuple(one["ends"]), tuple(kinds)))
        return found
    except (KeyError, ValueError, TypeError, IndexError, StopIteration) as error:
        raise DamagedCheckpoint(f"{part} must hold rollouts, got {error!r}; collect them again") from None


def _together(structure: Any, arrays: Mapping[str, Array], rows: slice) -> Any:
    if isinstance(structure, str):
        return arrays[structure][rows].copy()
    if "dict" in structure:
        return {key: _together(part, arrays, rows) for key, part in structure["dict"]}
    return tuple(_together(part, arrays, rows) for _, part in structure["tuple"])


def remove_part(part: Path) -> None:
    """Remove a part; whoever is killed meanwhile leaves nothing that counts."""
    for path in [*part.glob("*.json"), *part.iterdir()]:  # the manifest first: then it does not count any more
        path.unlink(missing_ok=True)
    part.rmdir()


class StoredRollouts(Sequence[Rollout]):
    """Rollouts that lie in parts, by their indices. Each is read when it is looked at; a few parts are kept in memory.

    `places` has the part of each index, and its number there.
    """

    def __init__(self, places: Mapping[int, tuple[Path, int]]) -> None:
        self._places = [place for _, place in sorted(places.items())]
        self._read: dict[Path, list[Rollout]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        part, number = self._places[index]
        found = self._read.pop(part, None) or read_part(part)
        self._read[part] = found  # the last one is the one that was used last
        if len(self._read) > _PARTS_IN_MEMORY:
            del self._read[next(iter(self._read))]
        return found[number]


# --- what can be written --------------------------------------------------------------------------------------


def check_writable(world: WorldSpec, task: Any) -> None:
    """Refuse a world whose observations or actions, or a task that cannot be written exactly."""
    encoded(task)
    for agent in world.agents:
        for what, space in (("observation", world.observation_spaces[agent]), ("action", world.action_spaces[agent])):
            layout = SpaceLayout(space)
            if layout.loose:
                raise _unwritable(f"the {what} of {agent}")
            arrays = [np.zeros(shape, dtype) for shape, dtype in layout.shapes(0)]
            safetensors({f"{what} of {agent} {i}": array for i, array in enumerate(arrays)})


def _unwritable(what: str) -> UsageError:
    return UsageError(
        f"rollouts are written as numbers, got values without a fixed size in {what}; leave such parts out of it"
    )


# --- tasks ----------------------------------------------------------------------------------------------------


def encoded(value: Any) -> Any:
    """Return a task as JSON can hold it, exactly.

    Raises:
        UsageError: if that cannot be.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return {"array": [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes().hex()]}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {"scalar": [value.dtype.str, value.tobytes().hex()]}
    if type(value) is dict:
        return {"dict": [[encoded(key), encoded(part)] for key, part in value.items()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [encoded(part) for part in value]}
    raise UsageError(
        f"a task that is written to a file is made of numbers, texts, arrays, lists, tuples and dicts, got "
        f"{type(value).__name__}; give such a task, or do not write it"
    )


def decoded(value: Any) -> Any:
    """Return the task that `encoded` gave."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    makers: dict[str, Callable[[Any], Any]] = {
        "array": lambda c: np.frombuffer(bytes.fromhex(c[2]), np.dtype(c[0])).reshape(c[1]).copy(),
        "scalar": lambda c: np.frombuffer(bytes.fromhex(c[1]), np.dtype(c[0]))[0],
        "dict": lambda c: {decoded(key): decoded(part) for key, part in c},
        "list": lambda c: [decoded(part) for part in c],
        "tuple": lambda c: tuple(decoded(part) for part in c),
    }
    return makers[kind](content)
