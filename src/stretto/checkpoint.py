"""Files that are whole or not there at all, arrays in them, and folders of files that belong together."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import DamagedCheckpoint, UsageError
from stretto.spaces import Array

Content = bytes | str | Iterable[bytes | memoryview]
"""What a file holds: all of it, or one part after the other, so that large arrays need not be copied."""

Parts = Array | Sequence[Array]
"""An array, or arrays that follow one another along the first axis, such as the two ends of a ring."""

MAX_HEADER_BYTES = 100_000_000
"""The limit that the safetensors format itself sets."""

MANIFEST = "manifest.json"
VERSION = 1

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
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_KINDS = ", ".join(_TYPES)


# --- files ----------------------------------------------------------------------------------------------------


def atomic_write(path: str | os.PathLike[str], content: Content) -> None:
    """Write a file in place of what is there; whoever reads it, at any time, finds all of the old one or of the new."""
    path = Path(path)
    if path.exists() and not path.is_file():  # /dev/null, or a pipe: a file must not take its place
        path.write_bytes(b"".join(_parts(content)))
    else:
        atomic_write_all({path: content})


def atomic_write_all(contents: Mapping[Path, Content]) -> None:
    """Write several files, each in place of what is there; none of them is replaced before all are written."""
    drafts: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            target = path.resolve()  # a link stays a link
            drafts[target] = _draft(target.parent)
            _write(drafts[target], content)
        for target, draft in drafts.items():
            draft.replace(target)
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


def _draft(folder: Path) -> Path:
    return folder / f".{os.urandom(8).hex()}.draft"


def _parts(content: Content) -> Iterable[bytes | memoryview]:
    if isinstance(content, str):
        # What a game or a policy says of itself may hold halves of characters, which no encoding has.
        return [content.encode("utf-8", "backslashreplace")]
    return [content] if isinstance(content, bytes) else content


def _write(path: Path, content: Content) -> str:
    """Write a file to the disk, and return the sha256 of what was written."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in _parts(content):
            file.write(part)
            digest.update(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


# --- arrays ---------------------------------------------------------------------------------------------------


def write_safetensors(path: str | os.PathLike[str], arrays: Mapping[str, Parts]) -> None:
    """Write arrays of booleans, integers and floats, bit by bit as they are.

    Raises:
        UsageError: if one of them has numbers of another type.
    """
    atomic_write(path, safetensors(arrays))


def safetensors(arrays: Mapping[str, Parts]) -> Iterator[bytes | memoryview]:
    """Return the content of a safetensors file, without a copy of arrays that lie in memory as they do in a file.

    Raises:
        UsageError: if one of them has numbers that such a file cannot hold.
    """
    header, end, listed = {}, 0, {name: _listed(parts) for name, parts in arrays.items()}
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
        size = os.fstat(file.fileno()).st_size
        length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else -1
        if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
            raise DamagedCheckpoint(
                f"{path} must begin with the length of a header that it holds, got {length}; save it again"
            )
        try:
            header = json.loads(file.read(length))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            tensors = {name: _Tensor.checked(size - 8 - length, **entry) for name, entry in entries.items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedCheckpoint(
                f"{path} must be a safetensors file of {_KINDS} numbers, got {error}; save it again"
            ) from None
        wanted = into or {}
        if missing := sorted(wanted.keys() - tensors.keys()):
            raise UsageError(f"{path} must hold {', '.join(missing)}; read what was saved by the same kind of object")
        for name, parts in wanted.items():
            tensors.pop(name).read_into(file, 8 + length, parts, f"{name!r} of {path}")
        return {name: tensor.read(file, 8 + length) for name, tensor in tensors.items()}


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


# --- folders --------------------------------------------------------------------------------------------------


def write_folder(folder: str | os.PathLike[str], contents: Mapping[str, Content]) -> None:
    """Write files that belong together, in place of those that such a call wrote before.

    Whoever is killed at any time leaves all of the old ones or all of the new. A file's name on the disk has a part of
    its sha256 in it, so that no old file is overwritten; the manifest, which is replaced last, says which ones count.
    One process writes a folder at a time.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    for name, content in contents.items():
        draft = _draft(folder)
        try:
            digests[name] = _write(draft, content)
            draft.replace(folder / _name_on_disk(name, digests[name]))
        finally:
            draft.unlink(missing_ok=True)
    _sync(folder)  # a power cut must not leave a manifest of files that are not there
    atomic_write(folder / MANIFEST, json.dumps({"version": VERSION, "files": digests}, indent=1) + "\n")
    _sync(folder)
    counted = {_name_on_disk(name, digest) for name, digest in digests.items()}
    for path in folder.iterdir():
        if path.name not in counted and re.fullmatch(r".+-[0-9a-f]{16}(\.\w+)?|\.[0-9a-f]{16}\.draft", path.name):
            path.unlink()


def _name_on_disk(name: str, digest: str) -> str:
    return f"{Path(name).stem}-{digest[:16]}{Path(name).suffix}"


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_folder(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Return where the files of a folder lie, by name, once all of them are seen to be as they were written.

    Raises:
        DamagedCheckpoint: if something is missing, or is not what was written.
        UsageError: if a later version of Stretto wrote it.
    """
    folder = Path(folder)
    paths = {}
    for name, digest in _manifest(folder).items():
        path = paths[name] = folder / _name_on_disk(name, digest)
        if not path.is_file():
            raise DamagedCheckpoint(f"{folder} must hold all files of its {MANIFEST}, got no {path.name}; use another")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            raise DamagedCheckpoint(
                f"{path} must have the sha256 that {MANIFEST} names, {digest}, got {found}; use another checkpoint"
            )
    return paths


def _manifest(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of a folder."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version, files = manifest["version"], dict(manifest["files"])
        if not all(Path(name).name == name and re.fullmatch("[0-9a-f]{64}", sha) for name, sha in files.items()):
            raise ValueError("names that are none")
    except FileNotFoundError:
        raise DamagedCheckpoint(
            f"{folder} must hold a {MANIFEST}, got none; it was never finished, or is another"
        ) from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path} must be what Stretto wrote, got {error!r}; use another checkpoint") from None
    if version != VERSION:
        raise UsageError(
            f"{folder} must be of version {VERSION}, got {version!r}; read it with the Stretto that wrote it"
        )
    return files
