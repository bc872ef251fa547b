"""Files that are whole or not there at all, and arrays in them."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import UsageError
from stretto.spaces import Array

MAX_HEADER_BYTES = 100_000_000
"""The limit that the safetensors format itself sets."""

_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "I64": np.dtype("<i8")}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_KINDS = ", ".join(_TYPES)


def atomic_write(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file in place of what is there; whoever reads it, at any time, finds all of the old one or of the new."""
    path = Path(path)
    if path.exists() and not path.is_file():  # /dev/null, or a pipe: a file must not take its place
        path.write_bytes(_encoded(content))
    else:
        atomic_write_all({path: content})


def atomic_write_all(contents: Mapping[Path, bytes | str]) -> None:
    """Write several files, each in place of what is there; none of them is replaced before all are written."""
    drafts: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            target = path.resolve()  # a link stays a link
            drafts[target] = target.with_name(f".{os.urandom(8).hex()}.draft")
            _write(drafts[target], _encoded(content))
        for target, draft in drafts.items():
            draft.replace(target)
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


def _encoded(content: bytes | str) -> bytes:
    # What a game or a policy says of itself may hold halves of characters, which no encoding has.
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_safetensors(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write arrays of 32-bit and 64-bit floats and 64-bit integers, bit by bit as they are.

    Raises:
        UsageError: if one of them has numbers of another type.
    """
    header, pieces, end = {}, [], 0
    for name, array in arrays.items():
        dtype = array.dtype.newbyteorder("<")
        if dtype not in _NAMES:
            raise UsageError(f"arrays in a file must be of {_KINDS}, got {array.dtype} in {name!r}; convert it")
        piece = array.astype(dtype, copy=False).tobytes()
        begin, end = end, end + len(piece)
        header[name] = {"dtype": _NAMES[dtype], "shape": array.shape, "data_offsets": (begin, end)}
        pieces.append(piece)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin where 64 bits can be read at once
    atomic_write(path, b"".join([struct.pack("<Q", len(text)), text, *pieces]))


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a safetensors file: a length (8 bytes), a JSON header, and the raw numbers.

    Nothing in such a file can run. Every offset is checked against the file before it is used.

    Raises:
        UsageError: if the file is damaged, or holds numbers other than those that `write_safetensors` takes.
    """
    content = Path(path).read_bytes()
    length = struct.unpack_from("<Q", content)[0] if len(content) >= 8 else -1
    if not 0 < length <= min(MAX_HEADER_BYTES, len(content) - 8):
        raise UsageError(f"{path} must begin with the length of a header that it holds, got {length}; save it again")
    try:
        header = json.loads(content[8 : 8 + length])
        data = memoryview(content)[8 + length :]
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _tensor(data, **entry) for name, entry in tensors.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} must be a safetensors file of {_KINDS} numbers, got {error}; save it again") from None


def _tensor(data: memoryview, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    begin, end = data_offsets
    if dtype not in _TYPES:
        raise ValueError(f"numbers of type {dtype}")
    kind = _TYPES[dtype]
    if not all(type(size) is int and size >= 0 for size in (begin, end, *shape)):
        raise ValueError(f"shape {shape} at {data_offsets}")
    if not begin <= end <= len(data) or end - begin != kind.itemsize * math.prod(shape):
        raise ValueError(f"shape {shape} at {data_offsets} of {len(data)} bytes")
    return np.frombuffer(data[begin:end], kind).astype(kind.newbyteorder("=")).reshape(shape)
