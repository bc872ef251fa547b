"""How far a sweep is: how many runs are over, which are under way, and the best candidate so far."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.text import Text

from stretto.cli.progress import READY_SOON, Pauses, Row, bars, duration, shown
from stretto.cli.text import say
from stretto.evaluation.report.wording import counted, short_number
from stretto.sweeps.progress import SweepProgress
from stretto.sweeps.space import point_text
from stretto.training.curves import mean_of_agents
from stretto.training.run_files import last_row

_MOST_ROWS = 8


@contextmanager
def shown_sweep(progress: SweepProgress, *, quiet: bool) -> Iterator[None]:
    """Show how far a sweep is while the body runs."""
    began, pauses = time.monotonic(), Pauses()

    def look() -> None:
        seconds = time.monotonic() - began
        if progress.total and pauses.are_over(seconds):
            say(f"{sweep_line(progress)} after {duration(seconds)}")

    with shown(quiet, lambda: _moving(progress), look):
        yield


def _moving(progress: SweepProgress) -> RenderableType:
    if not progress.total:
        return Text(READY_SOON)
    rows: list[Row] = []
    for path, name in progress.under_way.items():
        row = last_row(path)
        if row is not None and len(rows) < _MOST_ROWS:
            rows.append(Row(name, "", min(row["steps"], progress.steps), progress.steps, "return", mean_of_agents(row)))
    return Group(Text(sweep_line(progress)), bars(rows))


def sweep_line(progress: SweepProgress) -> str:
    """Say how much is done, what failed, and what is best so far."""
    parts = [f"{progress.done} of {counted(progress.total, 'run')}"]
    if progress.failed:
        parts.append(f"{counted(progress.failed, 'candidate')} failed")
    if (best := progress.best) is not None:
        parts.append(f"best so far: {short_number(best.score)} with {point_text(best.settings)}")
    return "; ".join(parts)
