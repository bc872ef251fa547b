"""Journal: what is finished of an evaluation, kept on disk as it comes, so that a killed one can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from stretto.errors import UsageError
from stretto.evaluation.records import EpisodeRecord

PLAN, EPISODES = "plan.json", "episodes.partial.jsonl"


class Journal:
    """A folder with a plan and a line for each finished episode."""

    def __init__(self, folder: str | Path, plan: Mapping[str, Any], *, resume: bool) -> None:
        self.folder = Path(folder)
        self.records: list[EpisodeRecord] = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._open(plan, resume=resume)
        except OSError as error:
            raise UsageError(
                f"an evaluation is kept in a folder that can be written to, got {folder}: {error.strerror}; choose another"
            ) from None

    def _open(self, plan: Mapping[str, Any], *, resume: bool) -> None:
        described = json.dumps(plan, sort_keys=True, indent=1)
        if resume:
            _check_same(self.folder, json.loads(described))
            self.records = _read(self.folder / EPISODES)
        else:
            if (self.folder / PLAN).exists():
                raise UsageError(
                    f"{self.folder} holds an evaluation already; choose another folder, or go on with --resume {self.folder}"
                )
            _write(self.folder / PLAN, described + "\n")
        # What was cut off in the middle of a line is played again: it begins with what is whole.
        _write(self.folder / EPISODES, "".join(_line(record) for record in self.records))
        self._file = (self.folder / EPISODES).open("a")

    def add(self, record: EpisodeRecord) -> None:
        """Keep an episode, at once."""
        self._file.write(_line(record))
        self._file.flush()

    def finish(self) -> None:
        """Remove what is not needed any more once the whole report is saved."""
        self._file.close()
        (self.folder / EPISODES).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_plan(folder: str | Path) -> dict[str, Any]:
    """Return the plan of an evaluation that was begun in a folder."""
    try:
        plan: dict[str, Any] = json.loads((Path(folder) / PLAN).read_text())
    except (OSError, ValueError):
        raise UsageError(f"there is no evaluation to go on with in {folder}: it has no readable {PLAN}") from None
    return plan


def _check_same(folder: Path, plan: dict[str, Any]) -> None:
    begun = read_plan(folder)
    for key in sorted({*begun, *plan}):
        if begun.get(key) != plan.get(key):
            raise UsageError(
                f"only the same evaluation can be gone on with, and {key} was {begun.get(key)!r} in {folder} and is "
                f"{plan.get(key)!r} now"
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


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
