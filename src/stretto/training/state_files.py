"""States in files: arrays, plain values, and large things that have files of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stretto.checkpoint import Content
from stretto.errors import DamagedCheckpoint
from stretto.safetensors import Parts, read_safetensors, safetensors

_ARRAY, _FILES = "array of", "files of"
"""The keys of what stands in a JSON file for an array, and for something that has files of its own."""


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """Where something was saved that has files of its own: call its `restore(files, name)`."""

    files: Mapping[str, Path]
    name: str


def state_contents(state: Any, name: str = "state") -> dict[str, Content]:
    """Return the files that hold a state: arrays, JSON's values, buffers, and dicts and lists of these.

    Arrays are not copied: they must not change before the files are written.
    """
    arrays: dict[str, Parts] = {}
    files: dict[str, Content] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(part, f"{path}.{key}") for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(part, f"{path}.{number}") for number, part in enumerate(value)]
        if isinstance(value, np.ndarray):
            arrays[path] = value
            return {_ARRAY: path}
        if hasattr(value, "contents"):
            files.update(value.contents(path))
            return {_FILES: path}
        return value

    text = json.dumps(plain(state, name))
    return {f"{name}.json": text, f"{name}.safetensors": safetensors(arrays), **files}


def read_state(files: Mapping[str, Path], name: str = "state") -> Any:
    """Return the state whose files `state_contents` gave; `SavedFiles` stand for what has files of its own.

    Raises:
        DamagedCheckpoint: if these are other files.
    """
    try:
        arrays = read_safetensors(files[f"{name}.safetensors"])

        def whole(value: Any) -> Any:
            if isinstance(value, list):
                return [whole(part) for part in value]
            if not isinstance(value, dict):
                return value
            if value.keys() == {_ARRAY}:
                return arrays[value[_ARRAY]]
            if value.keys() == {_FILES}:
                return SavedFiles(files, value[_FILES])
            return {key: whole(part) for key, part in value.items()}

        return whole(json.loads(files[f"{name}.json"].read_bytes()))
    except (KeyError, ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"a saved state must have all of its parts, got {error!r}; use another") from None
