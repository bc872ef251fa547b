"""Journal: what is finished of an evaluation, kept on disk as it comes, so that a killed one can go on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from stretto.checkpoint import atomic_write_all
from stretto.errors import ResourceError, UsageError
from stretto.evaluation.identity import CHANGES, IDENTITY, changes_since
from stretto.evaluation.records import EpisodeRecord, read_records
from stretto.evaluation.report import EPISODES, Report

PLAN, PARTIAL = "plan.json", "episodes.partial.jsonl"

_MOST_CHANGES = 3  # that a sentence names


class Journal:
    """A folder with a plan and a line for each finished episode.

    Nothing is written before `begin`: an evaluation that is refused until then leaves the folder as it was. `records` are
    the episodes that were there before, and `finished` says whether these are a whole evaluation, with its report. `plan` is
    what describes the records: that of the evaluation that goes on, until `begin`.

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
        self.folder = Path(folder)
        self.records: list[EpisodeRecord] = []
        self._now: dict[str, Any] = json.loads(json.dumps(plan))
        self.plan = self._now
        self._lock, self._file, self._size = -1, -1, 0
        self._made = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self.folder)
            # The report is written first, and only then is what it was made of removed.
            self.finished = (self.folder / EPISODES).exists() and not (self.folder / PARTIAL).exists()
            if resume:
                self.plan = read_plan(self.folder)
                _check_same(self.folder, self.plan, self._now)
                self.records = read_records(self.folder / (EPISODES if self.finished else PARTIAL), whole=self.finished)
                self._take_changes(accept_changes)
            else:
                _check_new(self.folder, finished=self.finished)
        except UsageError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise UsageError(
                f"an evaluation is kept in a folder that can be written to, got {folder}: {error.strerror}; choose another"
            ) from None

    def _take_changes(self, accepted: bool) -> None:
        before = self.plan.get(CHANGES, [])
        changes = list(changes_since(self.plan.get(IDENTITY, {}), self._now[IDENTITY])) if IDENTITY in self._now else []
        if changes and not accepted:
            named = "; ".join(changes[:_MOST_CHANGES])
            more = f"; and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
            raise UsageError(
                f"episodes of one evaluation must be played by the same code, but since {self.folder} was begun, "
                f"{named}{more}; undo that, choose another folder, or go on with --accept-changes (in Python "
                f"accept_changes=True), which the report will say"
            )
        if changes or before:
            now = {"episodes": len(self.records), "changes": changes}
            self._now[CHANGES] = [*before, *([now] if changes else [])]

    def begin(self) -> None:
        """Write what is known so far: from now on this is an evaluation that can be gone on with."""
        # What was cut off in the middle of a line is played again: it begins with what is whole.
        lines = "".join(_line(record) for record in self.records)
        try:
            plan = json.dumps(self._now, sort_keys=True, indent=1) + "\n"
            atomic_write_all({self.folder / PARTIAL: lines, self.folder / PLAN: plan})
            self._file = os.open(self.folder / PARTIAL, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise self._unwritten("the plan", error, "choose another folder, or make room") from None
        self.plan, self._size = self._now, len(lines.encode())

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
            raise self._unwritten(what, error, self._remedy) from None
        self._size += len(line)

    def finish(self, report: Report | None = None) -> None:
        """Write the report, if there is a new one, and remove what is not needed any more once it is whole."""
        try:
            if report is not None:
                report.save(self.folder)
        except OSError as error:
            raise self._unwritten("the report", error, self._remedy) from None
        self._close_file()
        (self.folder / PARTIAL).unlink(missing_ok=True)

    @property
    def _remedy(self) -> str:
        return f"what was written stays good: make room, and go on with stretto eval --resume {self.folder}"

    def _unwritten(self, what: str, error: OSError, remedy: str) -> ResourceError:
        return ResourceError(f"{what} could not be written into {self.folder}: {error.strerror}; {remedy}")

    def close(self) -> None:
        """Close the file; leave no folder that has nothing in it. May be called twice."""
        self._close_file()
        if self._lock >= 0:
            if self._made:
                with suppress(OSError):  # it is not empty
                    self.folder.rmdir()
            os.close(self._lock)
        self._lock = -1

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def locked(folder: Path) -> int:
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


def read_plan(folder: Path) -> dict[str, Any]:
    """Return what describes the evaluation that was begun in a folder.

    Raises:
        UsageError: if there is none, or it is damaged.
    """
    try:
        plan = json.loads((folder / PLAN).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        plan = None
    if not isinstance(plan, dict):
        raise UsageError(f"there is no evaluation to go on with in {folder}: it has no readable {PLAN}")
    return plan


def _check_new(folder: Path, *, finished: bool) -> None:
    if finished:
        raise UsageError(
            f"{folder} holds a finished evaluation, which would be overwritten; choose another folder, or play more "
            f"episodes of it with --resume {folder} -e NUMBER"
        )
    if (folder / PLAN).exists() or ((folder / PARTIAL).exists() and (folder / PARTIAL).stat().st_size):
        raise UsageError(
            f"{folder} holds an evaluation that was begun; choose another folder, or go on with --resume {folder}"
        )


def _check_same(folder: Path, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key in sorted({*begun, *now} - {IDENTITY, CHANGES}):
        was, wanted = begun.get(key), now.get(key)
        if key == "episodes" and isinstance(was, int) and isinstance(wanted, int) and was <= wanted:
            continue
        if was != wanted:
            remedy = "ask for as many or more" if key == "episodes" else "ask for the same"
            raise UsageError(
                f"only the same evaluation can be gone on with, and {key} was {was!r} in {folder} and is "
                f"{wanted!r} now; {remedy}, or choose another folder"
            )


def _line(record: EpisodeRecord) -> str:
    return json.dumps(record.as_json(), sort_keys=True) + "\n"
