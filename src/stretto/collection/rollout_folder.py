"""RolloutFolder: rollouts kept on disk as they come, so that a killed collection can go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stretto.collection.experience import Rollout
from stretto.collection.files import (
    all_parts,
    complete_parts,
    count_rows,
    next_number,
    part_rows,
    remove_part,
    write_part,
)
from stretto.collection.stored import Place, StoredPart, StoredRollouts
from stretto.collection.task_json import encoded
from stretto.errors import StrettoError
from stretto.run_folder import RunFolder, RunKind

COLLECTION = RunKind("collection", "a collection", "rollouts", "collect")

PART_SECONDS = 10.0
"""How long a rollout that has ended is not on disk, at most: what a kill can cost."""


class RolloutFolder:
    """A folder with a plan, and rollouts in parts of many, each part written whole.

    A rollout is written with those that ended before it, after `PART_SECONDS` at the latest, or as soon as they are enough
    for a part. Nothing is written before the first one ends: a collection that is refused or raises before leaves the
    folder as it was. Leaving the `with` writes what is not written yet, whatever has happened.

    Args:
        folder: where; it is made if it is not there.
        plan: describes the collection, in plain values.
        resume: go on with what was begun there. It must be the same collection, with as many rollouts or more.
        accept_changes: go on, too, if code, weights or versions have changed since, and put that on record.
        on_begin: is called before the first rollout of this run is kept.

    Raises:
        UsageError: if the folder cannot be used for that.
    """

    def __init__(
        self,
        folder: Path,
        plan: Mapping[str, Any],
        *,
        resume: bool,
        accept_changes: bool = False,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._on_begin = RunFolder(folder, plan, COLLECTION), on_begin
        self._places: dict[int, Place] = {}
        self._unwritten: list[Rollout] = []
        self._number, self._rows, self._most_rows = 0, 0, 0
        self._writing, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._begun = False
        self._error: Exception | None = None
        with self._run.opening():
            if resume:
                self._run.check_same()
                self._number = next_number(folder)
            else:
                self._run.check_new(begun=bool(complete_parts(folder)))
        self._accept_changes = accept_changes

    def earlier(self) -> Iterator[Rollout]:
        """Yield the rollouts that were kept before; then refuse code, weights and versions that have changed since."""
        for part in complete_parts(self._run.path):
            stored = StoredPart(part)
            self._places |= stored.places
            yield from stored
        if self._places:
            self._run.take_changes(len(self._places), accepted=self._accept_changes)

    @property
    def done(self) -> frozenset[int]:
        """The indices of the rollouts that are on disk."""
        return frozenset(self._places)

    def add(self, rollout: Rollout) -> None:
        """Keep a rollout.

        Raises:
            ResourceError: if those before it could not be written, as on a full disk.
            UsageError: if its task cannot be written exactly.
        """
        if self._error is not None:
            raise self._error
        encoded(rollout.task)
        if not self._unwritten:
            self._rows, self._most_rows = 0, part_rows(rollout)
        self._unwritten.append(rollout)  # first: Ctrl-C may come at any time, and what is here is written then
        self._rows += count_rows(rollout)
        if self._thread is None:
            self._begin()
        if self._rows >= self._most_rows:
            self.write()

    def _begin(self) -> None:
        self._on_begin()
        self._run.begin()
        self._begun = True
        for part in set(all_parts(self._run.path)) - set(complete_parts(self._run.path)):
            remove_part(part)
        # A thread, because the next rollout may end in an hour.
        self._thread = threading.Thread(target=self._write_now_and_then, name="stretto-rollouts", daemon=True)
        self._thread.start()

    def _write_now_and_then(self) -> None:
        while not self._over.wait(PART_SECONDS):
            try:
                self.write()
            except StrettoError as error:
                self._error = error  # for whoever adds next

    def write(self) -> None:
        """Write what is not written yet.

        Raises:
            ResourceError: if that cannot be, as on a full disk. What was written before stays good.
        """
        with self._writing:
            some = self._unwritten.copy()  # others may be added meanwhile
            while some:
                part = self._run.path / f"{self._number:06d}"
                try:
                    write_part(self._run.path, self._number, some)
                except OSError as error:
                    if len(some) == 1:
                        raise self._run.unwritten(f"{len(self._unwritten)} rollouts", error) from None
                    some = some[: len(some) // 2]  # on a full disk there may be room for a few
                    continue
                self._places |= {one.index: Place(part, number, len(one)) for number, one in enumerate(some)}
                self._number += 1
                del self._unwritten[: len(some)]
                some = self._unwritten.copy()

    def rollouts(self) -> StoredRollouts:
        """Return the rollouts that are on disk; they are read when they are looked at."""
        return StoredRollouts(self._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        try:
            if self._thread is not None:
                with contextlib.suppress(RuntimeError):  # Ctrl-C came before it was seen to begin; it ends by itself
                    self._thread.join()
            if self._begun:
                self.write()
        except StrettoError as second:
            if error is None:
                raise
            if str(second) != str(error):
                error.add_note(str(second))
        finally:
            self._run.close()
