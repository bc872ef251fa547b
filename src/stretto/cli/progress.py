"""How far a run is, on stderr: a table that moves in a terminal, elsewhere a line now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stretto.evaluation.report.wording import counted, short_number, shorten
from stretto.workers.cluster import work_now

READY_SOON = "getting ready: worlds are made and policies are loaded"

_LONGEST_NAME = 24
_BAR_WIDTH = 16
_LOOKS_PER_SECOND = 4
_FIRST_LINE_SECONDS, _LAST_LINE_SECONDS = 5.0, 300.0
"""How long it is between two lines about progress at first, and at last: each time it is twice as long."""


@contextmanager
def shown(quiet: bool, moving: Callable[[], RenderableType], look: Callable[[], None]) -> Iterator[None]:
    """Show how far the body is: in a terminal what `moving` returns, elsewhere what `look` says when it is called."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield
    elif console.is_terminal:
        with Live(get_renderable=moving, console=console, transient=True, refresh_per_second=_LOOKS_PER_SECOND):
            yield
    else:
        with _called_now_and_then(look):
            yield


@contextmanager
def _called_now_and_then(look: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1 / _LOOKS_PER_SECOND):
            look()

    thread = threading.Thread(target=watch, name="stretto-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Pauses:
    """Tells when it is time for a line: less and less often."""

    def __init__(self) -> None:
        self._next, self._pause = _FIRST_LINE_SECONDS, _FIRST_LINE_SECONDS

    def are_over(self, seconds: float) -> bool:
        """Whether a line is due after so many seconds; then the next pause begins."""
        if seconds < self._next:
            return False
        self._pause = min(2 * self._pause, _LAST_LINE_SECONDS)
        self._next = seconds + self._pause
        return True


@dataclass(frozen=True, slots=True)
class Row:
    """How far a mission is with a policy: `what` names the number that says how well it does, and `note` what went wrong."""

    mission: str
    policy: str
    done: int
    total: int
    what: str
    score: float | None
    note: str = ""


def bars(rows: Iterable[Row]) -> Table:
    """Return a table with a bar for each row."""
    table = Table.grid(padding=(0, 2), collapse_padding=True)
    for justify in ("left", "left", "left", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(
            Text(shorten(row.mission, _LONGEST_NAME)),
            Text(shorten(row.policy, _LONGEST_NAME)),
            ProgressBar(max(1, row.total), row.done, width=_BAR_WIDTH),
            f"{row.done}/{row.total}",
            "" if row.score is None else f"{row.what} {short_number(row.score)}",
            row.note,
        )
    return table


def progress_line(done: int, total: int, unit: str, steps: int, seconds: float, earlier_steps: int = 0) -> str:
    """Say how much is done, and how fast; `earlier_steps` are those that took none of these seconds."""
    speed = f" ({(steps - earlier_steps) / seconds:,.0f} a second)" if seconds > 0 else ""
    done_so_far = f"{done:,} of {counted(total, unit)}, {counted(steps, 'step')}{speed} after {duration(seconds)}"
    return done_so_far + where_text()


def where_text() -> str:
    """Say what goes on on a cluster, if one is used."""
    work = work_now()
    return "" if work is None or not work.workers else f" on {work}"


def duration(seconds: float) -> str:
    """Return a time in the two units that matter."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
