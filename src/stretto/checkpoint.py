"""Files that are whole or not there at all, and folders of files that belong together."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from stretto.errors import DamagedCheckpoint, UsageError

Content = bytes | str | Iterable[bytes | memoryview]
"""What a file holds: all of it, or one part after the other, so that large arrays need not be copied."""

MANIFEST = "manifest.json"
VERSION = 1


# --- files ----------------------------------------------------------------------------------------------------


def atomic_write(path: str | os.PathLike[str], content: Content) -> None:
    """Write a file in place of what is there; whoever reads it, at any time, finds all of the old one or of the new."""
    path = Path(path)
    if path.exists() and not path.is_file():  # /dev/null, or a pipe: a file must not take its place
        path.write_bytes(b"".join(parts_of(content)))
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


def parts_of(content: Content) -> Iterable[bytes | memoryview]:
    """Return what a file holds, one part after the other."""
    if isinstance(content, str):
        # What a game or a policy says of itself may hold halves of characters, which no encoding has.
        return [content.encode("utf-8", "backslashreplace")]
    return [content] if isinstance(content, bytes) else content


def _write(path: Path, content: Content) -> str:
    """Write a file to the disk, and return the sha256 of what was written."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in parts_of(content):
            file.write(part)
            digest.update(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


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


def read_folder(
    folder: str | os.PathLike[str], only: Container[str] | None = None, *, check: bool = True
) -> dict[str, Path]:
    """Return where the files of a folder lie, by name, once all of them are seen to be as they were written.

    If `only` some are asked for, the others are not looked at. Whoever has done that before need not `check` them again.

    Raises:
        DamagedCheckpoint: if something is missing, or is not what was written.
        UsageError: if a later version of Stretto wrote it.
    """
    folder = Path(folder)
    paths = {}
    for name, digest in _manifest(folder).items():
        if only is not None and name not in only:
            continue
        path = paths[name] = folder / _name_on_disk(name, digest)
        if not path.is_file():
            raise DamagedCheckpoint(f"{folder} must hold all files of its {MANIFEST}, got no {path.name}; use another")
        if not check:
            continue
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
