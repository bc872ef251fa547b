"""Checkpoints: all that a run is, saved every so many steps, so that it can go on as if nothing had happened."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.checkpoint import Content, parts_of
from stretto.errors import CheckpointSkipped, NotResumable, StrettoError, UsageError, user_stacklevel
from stretto.policies.networks.saved import policies_content, saved_state
from stretto.run_checkpoints import POLICIES, all_checkpoints, newest_checkpoint, write_checkpoint
from stretto.training.interrupts import PATIENCE_SECONDS
from stretto.training.state_files import read_state, state_contents

if TYPE_CHECKING:
    from stretto.training.progress import TrainingProgress
    from stretto.training.run import Run
    from stretto.training.settings import CheckpointSettings


LONG_SECONDS = PATIENCE_SECONDS / 2
"""An interval that takes longer may well not end soon after Ctrl-C."""

MOST_KEPT_BYTES = 128 << 20
"""A run whose state is larger, as with replay buffers, keeps no copy of it in memory."""


@dataclass(frozen=True)
class _Kept:
    """All that a run was after an interval."""

    steps: int
    score: float | None
    contents: Mapping[str, bytes]


class Checkpoints:
    """Saves a run into its folder, or nowhere if it has none.

    A checkpoint that cannot be written, as on a full disk, is a warning: the next one is tried again. While intervals are
    long, what the run was after the last one is kept in memory: whoever is interrupted in the middle of one saves that.
    """

    def __init__(self, folder: Path | None, settings: CheckpointSettings, run: Run, progress: TrainingProgress) -> None:
        self._folder, self._settings, self._run, self._progress = folder, settings, run, progress
        self._saved: int | None = None
        self._tried = progress.steps
        self._kept: _Kept | None = None
        self._since = time.monotonic()
        reason = None if folder is None else _why_not(run)
        self._exact = reason is None
        if reason is not None:
            warnings.warn(
                f"this run cannot be gone on with exactly: {reason}; its weights are saved all the same",
                NotResumable,
                stacklevel=user_stacklevel(),
            )

    def begin(self, *, earlier: bool) -> None:
        """Begin with what is in the folder already, or else save what the run begins with, unless it begins with nothing.

        So a run that was killed before its first checkpoint does not begin with something else.
        """
        if earlier:
            self._saved = self._progress.steps
        else:
            self.save(now=True)

    def save(self, *, now: bool = False) -> None:
        """Save the run between two intervals if it is time for that, or `now`, unless that was done."""
        steps, every = self._progress.steps, self._settings.every
        due = now or (every is not None and steps // every > self._tried // every)
        if self._folder is None or not due or steps == self._saved:
            return
        self._tried = steps
        self._write(self._folder, steps, self._progress.score, self._contents())

    def keep(self, *, evaluates: bool) -> None:
        """Keep what the run is between two intervals in memory if the next may take long, unless it is large.

        It may if the last one did, or if the run is about to be evaluated.
        """
        now, self._kept = time.monotonic(), None
        took, self._since = now - self._since, now
        if self._folder is None or self._saved == self._progress.steps or not (evaluates or took > LONG_SECONDS):
            return
        parts = {name: list(parts_of(content)) for name, content in self._contents().items()}
        if sum(len(memoryview(part).cast("B")) for several in parts.values() for part in several) <= MOST_KEPT_BYTES:
            contents = {name: b"".join(several) for name, several in parts.items()}
            self._kept = _Kept(self._progress.steps, self._progress.score, contents)

    def save_kept(self) -> None:
        """Save what was kept, unless that was done; for a run that was interrupted in the middle of an interval."""
        kept = self._kept
        if self._folder is not None and kept is not None and kept.steps != self._saved:
            self._write(self._folder, kept.steps, kept.score, kept.contents)

    def _contents(self) -> dict[str, Content]:
        contents: dict[str, Content] = {POLICIES: policies_content(self._run.policies)}
        if self._exact:
            contents |= state_contents({"loop": self._run.loop.state(), "progress": self._progress.state()})
        return contents

    def _write(self, folder: Path, steps: int, score: float | None, contents: Mapping[str, Content]) -> None:
        try:
            write_checkpoint(folder, steps, contents, score, self._settings.keep)
            self._saved = steps
        except OSError as error:
            warnings.warn(
                f"the checkpoint after {steps:,} steps could not be written into {folder}: {error.strerror or error}; "
                f"the one before it stays, and the next one is tried again",
                CheckpointSkipped,
                stacklevel=user_stacklevel(),
            )


def _why_not(run: Run) -> str | None:
    """Say why a run could not go on in another process; `None` if it can."""
    try:
        state_contents(run.learners.state())
    except TypeError as error:
        return f"the state of its learners has more than arrays and plain values ({error})"
    return run.loop.why_not_resumable


def saved_run(folder: Path) -> Mapping[str, Any] | None:
    """Return the newest whole state of a run that is kept in a folder; `None` if it was killed before there was one.

    Raises:
        UsageError: if it has none, because it could not be saved exactly.
    """
    if not all_checkpoints(folder):
        return None
    files = newest_checkpoint(folder)
    if "state.json" not in files:
        raise UsageError(
            f"only a run that was saved exactly can be gone on with, and {folder} has weights alone; begin another one with "
            f"these: --init-from {folder}"
        )
    state: Mapping[str, Any] = read_state(files)
    return state


def go_on(run: Run, progress: TrainingProgress, state: Mapping[str, Any]) -> None:
    """Bring a run that has not begun to where another one was.

    Raises:
        UsageError: if it is another kind of run.
    """
    try:
        run.loop.load_state(state["loop"])
        progress.load_state(state["progress"])
    except StrettoError:
        raise
    except (
        KeyError,
        ValueError,
        IndexError,
        TypeError,
        RuntimeError,
    ) as error:  # as torch and numpy tell of other shapes
        raise UsageError(
            f"a run can go on only in the world and with the learners that it was saved with, got others ({error!r}); "
            f"choose the same"
        ) from error


def begin_from(run: Run, source: str) -> None:
    """Let agents begin with the weights of a run that is kept in a folder: `FOLDER`, or `FOLDER#agent` for all of them.

    Raises:
        UsageError: if there are none, or they are of other networks.
    """
    folder, _, agent = source.partition("#")
    if not Path(folder).is_dir():
        raise UsageError(f"weights are taken from the folder of a run, and {folder} is none; name the folder of --out")
    path = newest_checkpoint(Path(folder), only=(POLICIES,))[POLICIES]
    for learner in run.learners.learners:
        learner.load_policy(saved_state(path, learner.policy, agent or None))
