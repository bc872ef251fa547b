"""The files of a run: what it is, a line of figures for each interval, and a summary."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from stretto.checkpoint import atomic_write, atomic_write_all
from stretto.errors import CheckpointSkipped, LearnerStopped, user_stacklevel
from stretto.run_checkpoints import all_checkpoints
from stretto.run_folder import RunFolder, RunKind
from stretto.safetensors import safetensors
from stretto.training.curves import SeedHistory
from stretto.training.learners.failures import LearnerFailure
from stretto.training.log import LOGGER, LogFile
from stretto.training.page import render_page
from stretto.training.report import TrainingReport
from stretto.training.settings import TrackingSettings
from stretto.training.trackers import Tracker, trackers_of

TRAINING = RunKind("training run", "a training run", "steps", "train")

METRICS, SUMMARY, PAGE = "metrics.jsonl", "summary.json", "report.html"

_LAST_BYTES = 1 << 18
"""How much of the metrics is read to find the last line."""


class TrainingFolder:
    """Keeps a run in a folder, or nowhere; nothing is written before the first interval is over."""

    def __init__(self, run: RunFolder | None, *, resume: bool = False, accept_changes: bool = False) -> None:
        self._run = run
        self._metrics: IO[bytes] | None = None
        self._unwritten: list[bytes] = []
        self._earlier: tuple[Path, int] | None = None
        self._tracking = TrackingSettings()
        self._trackers: list[Tracker] = []
        self._log: LogFile | None = None
        if run is None:
            return
        with run.opening():
            if resume:
                run.check_same()
                done = next((int(path.name) for path in all_checkpoints(run.path)), 0)
                run.take_changes(done, accepted=accept_changes)
            else:
                run.check_new(begun=(run.path / METRICS).exists())

    @classmethod
    def of(cls, out: str | Path | None, plan: Mapping[str, Any], **going_on: bool) -> TrainingFolder:
        """Return the folder of a run; `out` is where it lies, if it is kept at all. `going_on` is as in the constructor."""
        return cls(None if out is None else RunFolder(out, plan, TRAINING), **going_on)

    def go_on(self, folder: Path, intervals: int) -> None:
        """Let the figures of so many intervals of the run in a folder stand before the first that is added."""
        self._earlier = folder, intervals

    def track(self, tracking: TrackingSettings) -> None:
        """Let others be told of the figures, too, from the first interval on."""
        self._tracking = tracking

    @property
    def path(self) -> Path | None:
        """Where it lies."""
        return None if self._run is None else self._run.path

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep the figures of an interval. What cannot be written, as on a full disk, is a warning, and tried again."""
        if self._run is None:
            return
        if self._metrics is None:
            self._run.begin()
            path = self._run.path / METRICS
            atomic_write(path, () if self._earlier is None else map(_line, read_rows(*self._earlier)))
            self._metrics = path.open("ab", buffering=0)
            self._log = LogFile(self._run.path)
            LOGGER.info("%s: intervals up to %d are complete", self._run.plan.get("world"), row["interval"])
            self._trackers = trackers_of(self._tracking, self._run.path, self._run.plan)
        for tracker in self._trackers:
            tracker.add(row)
        self._unwritten.append(_line(row))
        end = self._metrics.tell()
        try:
            self._metrics.write(b"".join(self._unwritten))
        except OSError as error:
            self._metrics.truncate(end)
            warnings.warn(
                f"metrics could not be written into {self._run.path}: {error.strerror}; they are tried again",
                CheckpointSkipped,
                stacklevel=user_stacklevel(),
            )
        else:
            self._unwritten.clear()

    def tell_of(self, failure: LearnerFailure) -> None:
        """Say that an agent learns no more, and keep what it could not learn from."""
        where = f"in update {failure.update}, " if failure.update else ""
        said = f"{failure.agent} learns no more: {where}{failure.reason}; the others go on"
        said += self._keep_batch(failure) if failure.batch else ""
        said += f"\n{failure.traceback}".rstrip() if failure.traceback else ""
        LOGGER.error("%s", said, extra={"agent": failure.agent})
        warnings.warn(said, LearnerStopped, stacklevel=user_stacklevel())

    def _keep_batch(self, failure: LearnerFailure) -> str:
        """Write what an agent could not learn from; say where that is."""
        if self._run is None:
            return ""
        name = re.sub(r"[^\w.-]", "_", failure.agent)
        path = self._run.path / f"failed_{name}_{failure.update}.safetensors"
        try:
            atomic_write(path, safetensors(failure.batch))
        except OSError as error:
            return f" (its batch could not be written into {self._run.path}: {error.strerror or error})"
        return f" (its batch is in {path})"

    def finish(self, report: TrainingReport) -> None:
        """Write the summary and the page of a run that has come to its end; that they cannot be written is a warning."""
        if self._run is None:
            return
        summary = report.summary()
        history = SeedHistory(report.seed, report.history, summary, report.evaluations)
        try:
            write_results(self._run.path, summary, self._run.plan, [history])
        except OSError as error:
            said = str(self._run.unwritten("the summary", error))
            warnings.warn(said, CheckpointSkipped, stacklevel=user_stacklevel())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tracker in self._trackers:
            tracker.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._log is not None:
            LOGGER.info("the run %s", "is over" if error is None else f"ends with {type(error).__name__}")
            self._log.close()
        if self._run is not None:
            self._run.close()


def write_results(
    folder: Path, summary: Mapping[str, Any], plan: Mapping[str, Any], runs: Sequence[SeedHistory]
) -> None:
    """Write what came of one run, or of one a seed: a summary, and a page for people."""
    texts = {SUMMARY: json.dumps(summary, indent=1) + "\n", PAGE: render_page(plan, runs)}
    atomic_write_all({folder / name: words for name, words in texts.items()})


def read_rows(folder: Path, intervals: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the figures of the first intervals of a run, or of all. What was never written, or broken off, is left out."""
    with suppress(OSError, ValueError), (folder / METRICS).open("rb") as lines:
        for line in lines:
            row = json.loads(line)
            if intervals is not None and row["interval"] > intervals:
                break
            yield row


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def seed_folder(folder: Path, seed: int) -> Path:
    """Return where the run of a seed lies in the folder of several."""
    return folder / f"seed-{seed}"


def last_row(folder: Path) -> dict[str, Any] | None:
    """Return the figures of the last interval of a run that another process does; `None` before the first."""
    with suppress(OSError, ValueError, IndexError), (folder / METRICS).open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _LAST_BYTES))
        found: dict[str, Any] = json.loads(file.read().split(b"\n")[-2])  # behind it is what is being written
        return found
    return None
