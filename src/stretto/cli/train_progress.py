"""How far a run is: what each agent gets and how it learns, how fast it goes, and what the time is spent on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from stretto.cli.progress import READY_SOON, Pauses, Row, bars, duration, shown, where_text
from stretto.cli.text import say
from stretto.evaluation.report.wording import counted, short_number, shorten
from stretto.training.progress import AgentProgress, TrainingProgress
from stretto.training.run_files import last_row, seed_folder

_MOST_ROWS = 16
_MOST_RETURNS = 4
_LONGEST_NAME = 20
_COLUMN_WIDTH = 12
_OF_RUNS = ("loss", "policy_loss", "updates", "buffer")


@contextmanager
def shown_progress(progress: TrainingProgress, *, quiet: bool) -> Iterator[None]:
    """Show how far a run is while the body runs."""
    with shown(quiet, lambda: moving_table(progress, Console(stderr=True).width), TrainingLines(progress).look):
        yield


def moving_table(progress: TrainingProgress, width: int) -> RenderableType:
    """Return what is seen in a terminal of so many columns at one moment."""
    agents = list(progress.agents.items())
    if not agents:
        return Text(READY_SOON)
    more = [name for name in agents[0][1].metrics if name not in _OF_RUNS]
    more = more[: max(0, (width - 70) // _COLUMN_WIDTH)]
    table = Table(box=None, pad_edge=False)
    table.add_column("agent", no_wrap=True)
    for heading in ("return", "episodes", "loss", "updates", "buffer", *more):
        table.add_column(shorten(heading.replace("_", " "), _COLUMN_WIDTH - 2), justify="right", no_wrap=True)
    for agent, one in agents[:_MOST_ROWS]:
        figures = [short_number(one.metrics.get(name)) for name in more]
        table.add_row(Text(shorten(agent, _LONGEST_NAME)), *_cells(one), *figures)
    left_out = [Text(f"and {counted(len(agents) - _MOST_ROWS, 'more agent')}")] if len(agents) > _MOST_ROWS else []
    lines = [Text(line) for line in (summary_line(progress), shares_line(progress), evaluation_line(progress)) if line]
    return Group(table, *left_out, *lines)


def _cells(one: AgentProgress) -> list[str]:
    loss = one.metrics.get("loss", one.metrics.get("policy_loss"))
    filled = one.metrics.get("buffer", 1.0)  # what is learned from at once is always whole
    learns = short_number(loss) if one.stopped is None else "stopped"
    return [short_number(one.mean_return), f"{one.episodes:,}", learns, f"{one.updates:,}", f"{filled:.0%}"]


class TrainingLines:
    """Says now and then, and less and less often, how far a run is."""

    def __init__(self, progress: TrainingProgress) -> None:
        self._progress, self._pauses, self._evaluations = progress, Pauses(), 0

    def look(self) -> None:
        """Say what there is to say at this moment."""
        progress = self._progress
        if len(progress.evaluations) > self._evaluations:
            self._evaluations = len(progress.evaluations)
            say(f"{evaluation_line(progress)} after {counted(progress.evaluations[-1]['steps'], 'step')}")
        if progress.agents and self._pauses.are_over(progress.seconds):
            say(f"{summary_line(progress)}; {returns_text(progress)}; {shares_line(progress)}")


# ---- several seeds ----


@contextmanager
def shown_seeds(folder: Path, seeds: Sequence[int], total: int, *, quiet: bool) -> Iterator[None]:
    """Show how far the runs of several seeds are while the body runs; what they have done lies in `folder`."""
    began, pauses = time.monotonic(), Pauses()

    def look() -> None:
        if pauses.are_over(time.monotonic() - began):
            told = [
                f"seed {seed} {steps:,} ({short_number(value)})" for seed, steps, value in _seed_rows(folder, seeds)
            ]
            say(f"steps of {total:,} and returns after {duration(time.monotonic() - began)}: {', '.join(told)}")

    with shown(quiet, lambda: _seed_table(folder, seeds, total), look):
        yield


def _seed_table(folder: Path, seeds: Sequence[int], total: int) -> RenderableType:
    return bars(
        Row(f"seed {seed}", "", min(steps, total), total, "return", value)
        for seed, steps, value in _seed_rows(folder, seeds)
    )


def _seed_rows(folder: Path, seeds: Sequence[int]) -> Iterator[tuple[int, int, float | None]]:
    """Yield the steps of each seed so far, and the mean return of its agents."""
    for seed in seeds:
        row = last_row(seed_folder(folder, seed)) or {"steps": 0, "agents": {}}
        known = [one["return"] for one in row["agents"].values() if one["return"] is not None]
        yield seed, row["steps"], sum(known) / len(known) if known else None


# ---- both ----


def summary_line(progress: TrainingProgress) -> str:
    """Say how much is done, how fast, and how long it will still take."""
    speed, left = f"{progress.steps_per_second:,.0f} a second", progress.seconds_left
    rest = "" if left is None else f", about {duration(left)} left"
    done = f"{progress.steps:,} of {counted(progress.total, 'step')} ({speed}) after {duration(progress.seconds)}"
    return f"{done}{where_text()}{rest}"


def shares_line(progress: TrainingProgress) -> str:
    """Say what the time was spent on; where agents learn meanwhile, how long learners wait, and how far they are behind."""
    shares = ", ".join(f"{phase} {share:.0%}" for phase, share in progress.shares.items())
    overlap = progress.overlap
    if not overlap:
        return shares
    lag = f"lag {overlap['lag']:.0f} (mean {overlap['mean_lag']:.2f})"
    return f"{shares}; learners wait {overlap['learning_waits']:.0%}, {lag}, replay ratio {overlap['replay_ratio']:.2f}"


def evaluation_line(progress: TrainingProgress) -> str:
    """Say what came of the last evaluation; nothing if there was none."""
    if not progress.evaluations:
        return ""
    last = progress.evaluations[-1]
    return f"held-out episodes: mean return {short_number(last['return'])} of {last['episodes']}"


def returns_text(progress: TrainingProgress) -> str:
    """Say what agents get, or, where they are many, all of them on average."""
    returns = {agent: one.mean_return for agent, one in progress.agents.items() if one.mean_return is not None}
    if not returns:
        return "no episode has ended yet"
    if len(returns) > _MOST_RETURNS:
        return f"mean return of {len(returns)} agents {short_number(sum(returns.values()) / len(returns))}"
    return "returns: " + ", ".join(f"{agent} {short_number(one)}" for agent, one in returns.items())
