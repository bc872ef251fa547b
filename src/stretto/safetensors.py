"""Arrays in files, bit by bit as they are, in the safetensors format."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import DamagedCheckpoint, UsageError
from stretto.spaces import Array

Parts = Array | Sequence[Array]
"""An array, or arrays that follow one another along the first axis, such as the two ends of a ring."""

MAX_HEADER_BYTES = 100_000_000
"""The limit that the safetensors format itself sets."""

_TYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "U64": np.dtype("<u8"),
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_METADATA = "__metadata__"
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_KINDS = ", ".join(_TYPES)


def safetensors(arrays: Mapping[str, Parts], metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """Return the content of a safetensors file, without a copy of arrays that lie in memory as they do in a file.

    Raises:
        UsageError: if one of them has numbers that such a file cannot hold.
    """
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end, listed = 0, {name: _listed(parts) for name, parts in arrays.items()}
    for name, parts in listed.items():
        first = parts[0]
        dtype = first.dtype.newbyteorder("<")
        if dtype not in _NAMES:
            raise UsageError(f"arrays in a file must be of {_KINDS}, got {first.dtype} in {name!r}; convert it")
        shape = (sum(map(len, parts)), *first.shape[1:]) if len(parts) > 1 else first.shape
        begin, end = end, end + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin where 64 bits can be read at once
    start = struct.pack("<Q", len(text)) + text
    numbers = (part for parts in listed.values() for part in parts)
    return (item for items in ([start], map(_little_endian, numbers)) for item in items)


def _listed(parts: Parts) -> Sequence[Array]:
    return [parts] if isinstance(parts, np.ndarray) else parts


def _little_endian(array: Array) -> memoryview:
    return _raw(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))


def _raw(array: Array) -> memoryview:
    """Return the memory of an array that lies in one piece."""
    return array.reshape(-1).view(np.uint8).data


def read_safetensors(
    path: str | os.PathLike[str], into: Mapping[str, Sequence[Array]] | None = None
) -> dict[str, Array]:
    """Return the tensors of a safetensors file: a length (8 bytes), a JSON header, and the raw numbers.

    Those that `into` names are read straight into the arrays given there, one behind the other, and not returned.
    Nothing in such a file can run. Every offset is checked against the file before it is used.

    Raises:
        UsageError: if the file is damaged (`DamagedCheckpoint`), or does not fit what `into` expects.
    """
    with Path(path).open("rb") as file:
        tensors, start = _tensors(file)
        wanted = into or {}
        if missing := sorted(wanted.keys() - tensors.keys()):
            raise UsageError(f"{path} must hold {', '.join(missing)}; read what was saved by the same kind of object")
        for name, parts in wanted.items():
            tensors.pop(name).read_into(file, start, parts, f"{name!r} of {path}")
        return {name: tensor.read(file, start) for name, tensor in tensors.items()}


def map_safetensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a safetensors file, of which nothing is read before somebody looks, and none can be changed.

    The file is open for as long as any of them is there.

    Raises:
        DamagedCheckpoint: if it is no such file.
    """
    with Path(path).open("rb") as file:
        tensors, start = _tensors(file)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        name: np.ndarray(one.shape, one.dtype, content, start + one.begin if math.prod(one.shape) else 0)
        for name, one in tensors.items()
    }


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the texts that a safetensors file holds beside its tensors, by name."""
    with Path(path).open("rb") as file:
        return {str(name): str(text) for name, text in _header(file)[0].get(_METADATA, {}).items()}


def _tensors(file: BufferedReader) -> tuple[dict[str, _Tensor], int]:
    """Read the header of a safetensors file; return where its tensors lie, counted from where its numbers begin."""
    header, start, size = _header(file)
    try:
        entries = {name: entry for name, entry in header.items() if name != _METADATA}
        return {name: _Tensor.checked(size - start, **entry) for name, entry in entries.items()}, start
    except (ValueError, TypeError, AttributeError) as error:
        raise _no_safetensors(file, error) from None


def _header(file: BufferedReader) -> tuple[dict[str, Any], int, int]:
    """Return the header of a safetensors file, where its numbers begin, and its size."""
    path, size = file.name, os.fstat(file.fileno()).st_size
    length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else -1
    if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
        raise DamagedCheckpoint(
            f"{path} must begin with the length of a header that it holds, got {length}; save it again"
        )
    try:
        header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise TypeError(f"a {type(header).__name__} as its header")
        return header, 8 + length, size
    except (ValueError, TypeError, RecursionError) as error:
        raise _no_safetensors(file, error) from None


def _no_safetensors(file: BufferedReader, error: Exception) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{file.name} must be a safetensors file of {_KINDS} numbers, got {error}; save it again")


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where the numbers of an array lie behind the header of a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int

    @classmethod
    def checked(cls, size: int, dtype: str, shape: list[int], data_offsets: list[int]) -> _Tensor:
        begin, end = data_offsets
        if dtype not in _TYPES:
            raise ValueError(f"numbers of type {dtype}")
        if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
            raise ValueError(f"shape {shape} at {data_offsets}")
        if not begin <= end <= size or end - begin != _TYPES[dtype].itemsize * math.prod(shape):
            raise ValueError(f"shape {shape} at {data_offsets} of {size} bytes")
        return cls(_TYPES[dtype], tuple(shape), begin)

    def read(self, file: BufferedReader, start: int) -> Array:
        array = np.empty(self.shape, self.dtype)
        file.seek(start + self.begin)
        _fill(file, array)
        return array.astype(self.dtype.newbyteorder("="), copy=False)

    def read_into(self, file: BufferedReader, start: int, parts: Sequence[Array], what: str) -> None:
        expected = (sum(map(len, parts)), *parts[0].shape[1:])
        if self.shape != expected or self.dtype != parts[0].dtype:
            raise UsageError(
                f"{what} must be {parts[0].dtype} of shape {expected}, got {self.dtype} of {self.shape}; read it with "
                f"the settings that it was saved with"
            )
        file.seek(start + self.begin)
        for part in parts:
            _fill(file, part)


def _fill(file: BufferedReader, array: Array) -> None:
    if array.nbytes and file.readinto(_raw(array)) != array.nbytes:
        raise DamagedCheckpoint(f"{file.name} ended while it was read; save it again")
