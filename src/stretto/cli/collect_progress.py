"""How far a collection is: rollouts, steps, the mean return so far, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.text import Text

from stretto.cli.progress import READY_SOON, Pauses, Row, bars, duration, progress_line, shown
from stretto.cli.text import say
from stretto.collection.experience import Rollout
from stretto.evaluation.report.wording import short_number


class CollectionProgress:
    """What is known of a collection of so many rollouts. Time is counted from the last one that was there before."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self._clock = total, clock
        self.done = self.steps = self.earlier_steps = 0
        self._earned, self._earlier, self._began, self._begun = 0.0, 0, clock(), False

    def begin(self) -> None:
        """Take note that the next rollout is the first that was not there before."""
        self._begun = True

    def add(self, rollout: Rollout) -> None:
        """Count a rollout."""
        self.done += 1
        self.steps += len(rollout)
        self._earned += sum(float(kind.rewards.sum()) for kind in rollout.kinds)
        if not self._begun:
            self._earlier, self.earlier_steps, self._began = self.done, self.steps, self._clock()

    @property
    def played(self) -> int:
        """How many rollouts were not there before."""
        return self.done - self._earlier

    @property
    def seconds(self) -> float:
        """How long it has been played."""
        return self._clock() - self._began

    @property
    def mean_return(self) -> float | None:
        """The mean return so far."""
        return self._earned / self.done if self.done else None

    @property
    def seconds_left(self) -> float | None:
        """About how long it will still take; None as long as nobody can know."""
        return (self.total - self.done) * self.seconds / self.played if self.played else None


@contextmanager
def shown_progress(progress: CollectionProgress, names: tuple[str, str], *, quiet: bool) -> Iterator[None]:
    """Show how far a collection is while the body runs; `names` are those of its mission and its policy."""
    with shown(quiet, lambda: moving_table(progress, names), CollectionLines(progress).look):
        yield


def moving_table(progress: CollectionProgress, names: tuple[str, str]) -> RenderableType:
    """Return what is seen in a terminal at one moment."""
    if not progress.done:
        return Text(READY_SOON)
    row = Row(*names, progress.done, progress.total, "return", progress.mean_return)
    return Group(bars([row]), Text(summary_line(progress)))


class CollectionLines:
    """Says now and then, and less and less often, how far a collection is."""

    def __init__(self, progress: CollectionProgress) -> None:
        self._progress, self._pauses = progress, Pauses()

    def look(self) -> None:
        """Say what there is to say at this moment."""
        if self._pauses.are_over(self._progress.seconds):
            say(f"{summary_line(self._progress)}; mean return so far: {short_number(self._progress.mean_return)}")


def summary_line(progress: CollectionProgress) -> str:
    """Say how much is done, how fast, and how long it will still take."""
    left = progress.seconds_left
    rest = "" if left is None else f", about {duration(left)} left"
    done = progress.done, progress.total, "rollout", progress.steps
    return progress_line(*done, progress.seconds, progress.earlier_steps) + rest
