"""Journal: what is finished of an evaluation, kept on disk as it comes, so that a killed one can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from stretto.errors import UsageError
from stretto.evaluation.records import EpisodeRecord, read_records
from stretto.evaluation.report.report import EPISODES, Report
from stretto.run_folder import RunFolder, RunKind

PARTIAL = "episodes.partial.jsonl"

EVALUATION = RunKind("evaluation", "an evaluation", "episodes", "eval")


class Journal:
    """A folder with a plan and a line for each finished episode.

    Nothing is written before `begin`: an evaluation that is refused until then leaves the folder as it was. `records` are
    the episodes that were there before, and `finished` says whether these are a whole evaluation, with its report.

    Args:
        folder: where; it is made if it is not there.
        plan: describes the evaluation, in plain values.
        resume: go on with what was begun there. It must be the same evaluation, with as many episodes or more.
        accept_changes: go on, too, if code, weights or versions have changed since, and put that on record.

    Raises:
        UsageError: if the folder cannot be used for that.
    """

    def __init__(
        self, folder: str | Path, plan: Mapping[str, Any], *, resume: bool, accept_changes: bool = False
    ) -> None:
        self._run = RunFolder(folder, plan, EVALUATION)
        self.folder = self._run.path
        self.records: list[EpisodeRecord] = []
        self._file, self._size = -1, 0
        with self._run.opening():
            partial = self.folder / PARTIAL
            # The report is written first, and only then is what it was made of removed.
            self.finished = (self.folder / EPISODES).exists() and not partial.exists()
            if resume:
                self._run.check_same()
                self.records = read_records(self.folder / EPISODES if self.finished else partial, whole=self.finished)
                self._run.take_changes(len(self.records), accepted=accept_changes)
            elif self.finished:
                raise UsageError(
                    f"{folder} holds a finished evaluation, which would be overwritten; choose another folder, or play more "
                    f"episodes of it with --resume {folder} -e NUMBER"
                )
            else:
                self._run.check_new(begun=partial.exists() and partial.stat().st_size > 0)

    @property
    def plan(self) -> dict[str, Any]:
        """What describes the records: until `begin`, the plan of the evaluation that goes on."""
        return self._run.plan

    def begin(self) -> None:
        """Write what is known so far: from now on this is an evaluation that can be gone on with."""
        # What was cut off in the middle of a line is played again: it begins with what is whole.
        lines = "".join(_line(record) for record in self.records)
        self._run.begin({PARTIAL: lines})
        try:
            self._file = os.open(self.folder / PARTIAL, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise self._run.unwritten("episodes", error) from None
        self._size = len(lines.encode())

    def add(self, record: EpisodeRecord) -> None:
        """Keep an episode, at once.

        Raises:
            ResourceError: if it cannot be written, as on a full disk. What was written before stays good.
        """
        line = _line(record).encode()
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            with suppress(OSError):  # half a line is left out when it is read, too
                os.ftruncate(self._file, self._size)
            what = f"episode {record.episode} of {record.label} on {record.mission}"
            raise self._run.unwritten(what, error) from None
        self._size += len(line)

    def finish(self, report: Report | None = None) -> None:
        """Write the report, if there is a new one, and remove what is not needed any more once it is whole."""
        try:
            if report is not None:
                report.save(self.folder)
        except OSError as error:
            raise self._run.unwritten("the report", error) from None
        self._close_file()
        (self.folder / PARTIAL).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; leave no folder that has nothing in it. May be called twice."""
        self._close_file()
        self._run.close()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(record: EpisodeRecord) -> str:
    return json.dumps(record.as_json(), sort_keys=True) + "\n"
