"""How far an evaluation is, on stderr: a table that moves in a terminal, elsewhere a line now and then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stretto.cli.text import say
from stretto.evaluation.progress import Pair, PairProgress, Progress, RunningTask
from stretto.evaluation.report.wording import counted, short_number, shorten

_MOST_ROWS = 12
_MOST_SCORES = 4
_LONGEST_NAME = 24
_BAR_WIDTH = 16
_LOOKS_PER_SECOND = 4
_FIRST_LINE_SECONDS, _LAST_LINE_SECONDS = 5.0, 300.0
"""How long it is between two lines about progress at first, and at last: each time it is twice as long."""


@contextmanager
def shown_progress(quiet: bool) -> Iterator[Progress]:
    """Show how far the evaluation is that is told of its progress in the body."""
    progress, console = Progress(), Console(stderr=True, highlight=False)
    if quiet:
        yield progress
    elif console.is_terminal:
        live = Live(
            get_renderable=lambda: moving_table(progress),
            console=console,
            transient=True,
            refresh_per_second=_LOOKS_PER_SECOND,
        )
        with live:
            yield progress
    else:
        with _lines_now_and_then(progress):
            yield progress


# ---- in a terminal ----


def moving_table(progress: Progress) -> RenderableType:
    """Return what is seen in a terminal at one moment."""
    done, total = progress.episodes
    if not total or (not done and not progress.running):
        return Text("getting ready: worlds are made and policies are loaded")
    table = Table.grid(padding=(0, 2), collapse_padding=True)
    for justify in ("left", "left", "left", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for (mission, label), pair in _pairs_shown(progress):
        table.add_row(
            Text(shorten(mission, _LONGEST_NAME)),
            Text(shorten(label, _LONGEST_NAME)),
            ProgressBar(max(1, pair.total), pair.done, width=_BAR_WIDTH),
            f"{pair.done}/{pair.total}",
            _score(pair),
            f"{pair.failed} failed" if pair.failed else "",
        )
    endless = [Text(endless_text(task), style="yellow") for task in progress.endless()]
    return Group(table, Text(summary_line(progress)), *endless)


def _pairs_shown(progress: Progress) -> list[tuple[Pair, PairProgress]]:
    """Return all missions and policies if they are few, else those that are played now."""
    pairs = list(progress.pairs.items())
    if len(pairs) <= _MOST_ROWS:
        return pairs
    now = {(task.mission, task.label) for task in progress.running}
    return [(pair, one) for pair, one in pairs if pair in now][:_MOST_ROWS]


def _score(pair: PairProgress) -> str:
    return "" if pair.reward is None else f"reward {short_number(pair.reward)}"


# ---- elsewhere ----


@contextmanager
def _lines_now_and_then(progress: Progress) -> Iterator[None]:
    over, lines = threading.Event(), ProgressLines(progress)

    def watch() -> None:
        while not over.wait(1 / _LOOKS_PER_SECOND):
            lines.look()

    thread = threading.Thread(target=watch, name="stretto-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class ProgressLines:
    """Says now and then, and less and less often, how far an evaluation is; and at once which episode seems to be endless."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._told = progress, set[tuple[str, str, tuple[int, ...]]]()
        self._next, self._pause = _FIRST_LINE_SECONDS, _FIRST_LINE_SECONDS

    def look(self) -> None:
        """Say what there is to say at this moment."""
        seconds = self._progress.seconds
        if seconds >= self._next and self._progress.episodes[1]:
            self._pause = min(2 * self._pause, _LAST_LINE_SECONDS)
            self._next = seconds + self._pause
            say(summary_line(self._progress) + _scores_so_far(self._progress))
        _tell_endless(self._progress, self._told)


def _scores_so_far(progress: Progress) -> str:
    """Return the mean rewards so far where they are few."""
    pairs = list(progress.pairs.items())
    if len(pairs) > _MOST_SCORES or not any(one.rewards for _, one in pairs):
        return ""
    several = len({mission for (mission, _), _ in pairs}) > 1
    names = [f"{label} on {mission}" if several else label for (mission, label), _ in pairs]
    scores = [f"{name} {short_number(one.reward)}" for name, (_, one) in zip(names, pairs, strict=True)]
    return f"; rewards so far: {', '.join(scores)}"


def _tell_endless(progress: Progress, told: set[tuple[str, str, tuple[int, ...]]]) -> None:
    for task in progress.endless():
        if (key := (task.mission, task.label, task.episodes)) not in told:
            told.add(key)
            say(f"stretto: warning: {endless_text(task)}")


# ---- both ----


def summary_line(progress: Progress) -> str:
    """Say how much is done, how fast, and how long it will still take."""
    (done, total), steps, seconds = progress.episodes, progress.steps, progress.seconds
    speed = f" ({steps / seconds:,.0f} a second)" if seconds > 0 else ""
    left = progress.time_left()
    rest = "" if left is None else f", {'more than' if left.at_least else 'about'} {_duration(left.seconds)} left"
    return f"{done} of {counted(total, 'episode')}, {counted(steps, 'step')}{speed} after {_duration(seconds)}{rest}"


def endless_text(task: RunningTask) -> str:
    """Say that an episode seems to be endless, and what can be done."""
    which = f"episode {task.episodes[0]}" if len(task.episodes) == 1 else f"one of episodes {task.episodes[0]} to "
    which += "" if len(task.episodes) == 1 else str(task.episodes[-1])
    return (
        f"{which} of {task.mission} with {task.label} is at step {task.steps:,} and may never end; "
        f"--steps NUMBER ends episodes after so many steps"
    )


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
