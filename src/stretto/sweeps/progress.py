"""SweepProgress: how far a sweep is, for others to look at while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.sweeps.results import Candidate


@dataclass
class SweepProgress:
    """How many runs are done of how many; who waits or runs, by folder; and the best candidate so far.

    `begun` is called when the folder is there, before the first run.
    """

    begun: Callable[[], None] = lambda: None
    folder: Path | None = None
    total: int = 0
    steps: int = 0
    done: int = 0
    under_way: dict[Path, str] = field(default_factory=dict)
    best: Candidate | None = None
    failed: int = 0

    def begin(self, folder: Path, total: int, steps: int) -> None:
        """Take note of how much there is to do: so many runs, of so many steps each."""
        self.folder, self.total, self.steps = folder, total, steps
        self.begun()

    def wait_for(self, runs: Mapping[Path, str]) -> None:
        """Take note of runs that are done next, by folder with their names."""
        self.under_way = dict(runs)

    def ended(self, folder: Path) -> None:
        """Take note of a run that is over."""
        self.under_way = {path: name for path, name in self.under_way.items() if path != folder}
        self.done += 1

    def add(self, candidate: Candidate) -> None:
        """Take note of a candidate all of whose runs are over."""
        if candidate.score is None:
            self.failed += 1
        elif self.best is None or self.best.score is None or candidate.score > self.best.score:
            self.best = candidate
