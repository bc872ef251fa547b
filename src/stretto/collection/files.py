"""Rollouts on disk: parts of many rollouts, each written whole, with numbers in safetensors or npz and the rest in JSON."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stretto.checkpoint import MANIFEST, Content, write_folder
from stretto.collection.experience import COLUMNS, Rollout
from stretto.collection.task_json import encoded
from stretto.core import WorldSpec
from stretto.errors import UsageError
from stretto.run_folder import PLAN
from stretto.safetensors import safetensors
from stretto.spaces import Array, SpaceLayout

FORMATS = ("safetensors", "npz")

PART_ROWS, PART_BYTES = 100_000, 1 << 26
"""How large a part becomes at most, unless a single rollout is larger."""

ABOUT = "rollouts.json"
"""The file of a part that says what its arrays are of."""


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
    write_folder(folder / f"{number:06d}", {f"rollouts.{form}": content, ABOUT: json.dumps(about)})


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


def remove_part(part: Path) -> None:
    """Remove a part; whoever is killed meanwhile leaves nothing that counts."""
    for path in [*part.glob("*.json"), *part.iterdir()]:  # the manifest first: then it does not count any more
        path.unlink(missing_ok=True)
    part.rmdir()


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
