"""Rollouts on disk: parts of many rollouts, each written whole, with numbers in safetensors or npz and the rest in JSON."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stretto.checkpoint import Content, read_folder, read_safetensors, safetensors, write_folder
from stretto.collection.experience import COLUMNS, Experience, Rollout
from stretto.errors import DamagedCheckpoint, UsageError
from stretto.spaces import Array

FORMATS = ("safetensors", "npz")

PART_ROWS = 100_000
"""How many rows a part has at most, unless a single rollout has more."""

_ABOUT = "rollouts.json"


def save_rollouts(rollouts: Sequence[Rollout], folder: str | os.PathLike[str], form: str = "safetensors") -> None:
    """Write rollouts into a folder, in place of what such a call wrote there before."""
    folder = Path(folder)
    before = _parts(folder)
    first = 1 + max((int(part.name) for part in before), default=-1)
    for number, some in enumerate(_portions(rollouts), first):
        write_part(folder, number, some, form)
    for part in before:
        _remove(part)


def _portions(rollouts: Sequence[Rollout]) -> Iterator[list[Rollout]]:
    some: list[Rollout] = []
    rows = 0
    for rollout in rollouts:
        count = rollout.ends[-1] + 1
        if some and rows + count > PART_ROWS:
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
            raise UsageError(
                f"rollouts are written as numbers, got values without a fixed size in {name.partition('/')[2]}; "
                f"leave such parts out of the observation"
            )
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


def _parts(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if path.name.isdigit() and path.is_dir())


def complete_parts(folder: Path) -> list[Path]:
    """Return the parts that were written to the end."""
    return [part for part in _parts(folder) if (part / "manifest.json").is_file()]


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


def _remove(part: Path) -> None:
    for path in [*part.glob("*.json"), *part.iterdir()]:  # the manifest first: then it does not count any more
        path.unlink(missing_ok=True)
    part.rmdir()


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
