"""Journal: what is finished of an evaluation, kept on disk as it comes, so that a killed one can go on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from stretto.checkpoint import atomic_write
from stretto.errors import UsageError
from stretto.evaluation.records import EpisodeRecord
from stretto.evaluation.report import EPISODES

PLAN, PARTIAL = "plan.json", "episodes.partial.jsonl"


class Journal:
    """A folder with a plan and a line for each finished episode.

    `records` are those that were there before. `finished` says whether they are those of a whole evaluation, with its report.
    """

    def __init__(self, folder: str | Path, plan: Mapping[str, Any], *, resume: bool) -> None:
        self.folder = Path(folder)
        self.records: list[EpisodeRecord] = []
        self._lock = -1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.folder)
            # The report is written first, and only then is what it was made of removed.
            self.finished = (self.folder / EPISODES).exists() and not (self.folder / PARTIAL).exists()
            self._open(plan, resume=resume)
        except UsageError:
            self._unlock()
            raise
        except OSError as error:
            self._unlock()
            raise UsageError(
                f"an evaluation is kept in a folder that can be written to, got {folder}: {error.strerror}; choose another"
            ) from None

    def _open(self, plan: Mapping[str, Any], *, resume: bool) -> None:
        described = json.dumps(plan, sort_keys=True, indent=1)
        if resume:
            _check_same(self.folder, json.loads(described))
            self.records = _read(self.folder / (EPISODES if self.finished else PARTIAL))
        else:
            _check_new(self.folder, finished=self.finished)
            atomic_write(self.folder / PLAN, described + "\n")
        # What was cut off in the middle of a line is played again: it begins with what is whole.
        atomic_write(self.folder / PARTIAL, "".join(_line(record) for record in self.records))
        self._file = (self.folder / PARTIAL).open("a")

    def add(self, record: EpisodeRecord) -> None:
        """Keep an episode, at once."""
        self._file.write(_line(record))
        self._file.flush()

    def finish(self) -> None:
        """Remove what is not needed any more once the whole report is saved."""
        self._file.close()
        (self.folder / PARTIAL).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _locked(folder: Path) -> int:
    """Return a descriptor that keeps others from writing into a folder until it is closed, or its process ends."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(
            f"another program evaluates into {folder} just now; wait for it, or choose another folder"
        ) from None
    except OSError:  # a file system that knows no locks
        return fd
    return fd


def _check_new(folder: Path, *, finished: bool) -> None:
    if finished:
        raise UsageError(f"{folder} holds a finished evaluation, which would be overwritten; choose another folder")
    if (folder / PLAN).exists():
        raise UsageError(
            f"{folder} holds an evaluation that was begun; choose another folder, or go on with --resume {folder}"
        )


def _check_same(folder: Path, plan: dict[str, Any]) -> None:
    try:
        begun: dict[str, Any] = json.loads((folder / PLAN).read_text())
    except (OSError, ValueError):
        raise UsageError(f"there is no evaluation to go on with in {folder}: it has no readable {PLAN}") from None
    for key in sorted({*begun, *plan}):
        if begun.get(key) != plan.get(key):
            raise UsageError(
                f"only the same evaluation can be gone on with, and {key} was {begun.get(key)!r} in {folder} and is "
                f"{plan.get(key)!r} now; ask for the same, or choose another folder"
            )


def _read(path: Path) -> list[EpisodeRecord]:
    records = []
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        if not line.endswith("\n"):
            break  # it was being written when the process died
        records.append(EpisodeRecord.from_json(json.loads(line)))
    return records


def _line(record: EpisodeRecord) -> str:
    return json.dumps(record.as_json(), sort_keys=True) + "\n"
