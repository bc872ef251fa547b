"""How far an evaluation is: what its missions and policies got so far, and which episode seems to be endless."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.text import Text

from stretto.cli.progress import READY_SOON, Pauses, Row, bars, duration, progress_line, shown
from stretto.cli.text import say
from stretto.evaluation.progress import Pair, PairProgress, Progress, RunningTask
from stretto.evaluation.report.wording import short_number

_MOST_ROWS = 12
_MOST_SCORES = 4


@contextmanager
def shown_progress(quiet: bool) -> Iterator[Progress]:
    """Show how far the evaluation is that is told of its progress in the body."""
    progress = Progress()
    with shown(quiet, lambda: moving_table(progress), ProgressLines(progress).look):
        yield progress


# ---- in a terminal ----


def moving_table(progress: Progress) -> RenderableType:
    """Return what is seen in a terminal at one moment."""
    done, total = progress.episodes
    if not total or (not done and not progress.running):
        return Text(READY_SOON)
    table = bars(
        Row(*pair, one.done, one.total, "reward", one.reward, f"{one.failed} failed" if one.failed else "")
        for pair, one in _pairs_shown(progress)
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


# ---- elsewhere ----


class ProgressLines:
    """Says now and then, and less and less often, how far an evaluation is; and at once which episode seems to be endless."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._told = progress, set[tuple[str, str, tuple[int, ...]]]()
        self._pauses = Pauses()

    def look(self) -> None:
        """Say what there is to say at this moment."""
        if self._progress.episodes[1] and self._pauses.are_over(self._progress.seconds):
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
    left = progress.time_left()
    rest = "" if left is None else f", {'more than' if left.at_least else 'about'} {duration(left.seconds)} left"
    return progress_line(*progress.episodes, "episode", progress.steps, progress.seconds) + rest


def endless_text(task: RunningTask) -> str:
    """Say that an episode seems to be endless, and what can be done."""
    which = f"episode {task.episodes[0]}" if len(task.episodes) == 1 else f"one of episodes {task.episodes[0]} to "
    which += "" if len(task.episodes) == 1 else str(task.episodes[-1])
    return (
        f"{which} of {task.mission} with {task.label} is at step {task.steps:,} and may never end; "
        f"--steps NUMBER ends episodes after so many steps"
    )
