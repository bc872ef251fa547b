"""The checkpoints of a run on disk: each in a folder of its own, named by its steps, under `checkpoints`."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from stretto.checkpoint import MANIFEST, Content, read_folder, write_folder
from stretto.errors import CheckpointSkipped, DamagedCheckpoint, UsageError, user_stacklevel

CHECKPOINTS = "checkpoints"

POLICIES = "policies.safetensors"
"""The file of a checkpoint by which agents act."""

_ABOUT = "about.json"
_DRAFT = ".writing"


def all_checkpoints(run: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, the newest first."""
    folder = run / CHECKPOINTS
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [folder / name for name in sorted(filter(str.isdecimal, names), key=int, reverse=True)]


def newest_checkpoint(run: Path, only: Container[str] | None = None) -> dict[str, Path]:
    """Return the files of the newest checkpoint that is whole, by name; `run` may also be the folder of a checkpoint.

    Damaged ones are skipped with a warning. If `only` some files are asked for, the others, which may be large, are not
    looked at.

    Raises:
        UsageError: if there is none.
    """
    if (run / MANIFEST).is_file():
        return read_folder(run, only)
    found = all_checkpoints(run)
    for path in found:
        try:
            return read_folder(path, only)
        except DamagedCheckpoint as error:
            warnings.warn(
                f"a checkpoint is damaged, and the one before it is used: {error}",
                CheckpointSkipped,
                stacklevel=user_stacklevel(),
            )
    seen = f"{len(found)} damaged ones" if found else "none"
    raise UsageError(f"a run must have a whole checkpoint, got {seen} in {run / CHECKPOINTS}; name another folder")


def write_checkpoint(run: Path, steps: int, contents: Mapping[str, Content], score: float | None, keep: int) -> None:
    """Write a checkpoint, and remove all but the last `keep` and the one with the best score.

    Whoever is killed at any time leaves a whole checkpoint, if there was one.

    Raises:
        OSError: if it cannot be written; those before it stay.
    """
    folder, draft = run / CHECKPOINTS, run / CHECKPOINTS / _DRAFT
    folder.mkdir(exist_ok=True)  # not its parents: what has vanished may come back
    try:
        write_folder(draft, {**contents, _ABOUT: json.dumps({"steps": steps, "score": score})})
        target = folder / f"{steps:012d}"
        if target.exists():  # a damaged one, or one that a run wrote which went on from an earlier one
            shutil.rmtree(target)
        draft.replace(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    _prune(run, keep)


def _prune(run: Path, keep: int) -> None:
    several = all_checkpoints(run)
    scored = list(_scored(several))
    best = max(scored, key=lambda one: one[0])[1] if scored else None
    for path in several[keep:]:
        if path != best:
            shutil.rmtree(path, ignore_errors=True)


def _scored(several: list[Path]) -> Iterator[tuple[float, Path]]:
    """Yield the scores of checkpoints that have one, the newest first."""
    for path in several:
        with suppress(OSError, ValueError, KeyError, TypeError, StopIteration):
            score = json.loads(next(path.glob("about-*.json")).read_bytes())["score"]
            if score is not None:
                yield float(score), path
