"""`stretto bench`: what a plain loop and our backends do on a world, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from stretto.bench import RaceResult, race, verdict
from stretto.cli import options
from stretto.cli.text import screen_width
from stretto.missions.resolve import find_missions

DEMONSTRATION = ("CartPole-v1", "Acrobot-v1")
"""A light step and one that takes a few times as long; both come with Gymnasium."""


def bench_command(  # noqa: PLR0913, PLR0917  one parameter an option
    world: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORLD", help="Gymnasium ids, or missions as for -m. Default: a short demonstration."),
    ] = None,
    mission: options.Missions = None,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    num_envs: Annotated[int, options.whole("-n", "--num-envs", help="How many environments are stepped at once.")] = 64,
    seconds: Annotated[
        float, options.number("--seconds", metavar="SECONDS", help="How long each row of the table is measured.")
    ] = 1.5,
    output: Annotated[Literal["table", "json"], typer.Option("--format", help="How results are printed.")] = "table",
) -> None:
    """Measure a plain loop and every backend on an environment.

    It also says which of them `auto` chooses, and why.
    """
    results = []
    names = [*(world or ()), *(mission or ())] or DEMONSTRATION
    for one in find_missions(names, variants=variant or (), cogs=cogs, map_seed=map_seed):
        with _progress(f"{num_envs} x {one.name}") as advance:
            results.append(race(one, num_envs, seconds=seconds, on_progress=advance))
        if output == "table":
            _print_table(results[-1])
    if output == "json":
        print(json.dumps({"worlds": [asdict(result) for result in results]}, indent=2))


@contextmanager
def _progress(what: str) -> Iterator[Callable[[float], None]]:
    """Show on stderr how far it is: a bar in a terminal, elsewhere one line once it is under way."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with Progress(TextColumn(f"measuring {what}"), BarColumn(), console=console, transient=True) as bar:
            task = bar.add_task("", total=1.0)
            yield lambda share: bar.update(task, completed=share)
        return
    lines = iter([f"measuring {what}"])

    def announce(_: float) -> None:
        for line in lines:
            console.print(line)

    yield announce


def _print_table(result: RaceResult) -> None:
    console = Console(width=screen_width(), highlight=False)
    console.print(
        f"{result.num_envs} x {result.world}: a step takes {result.step_seconds * 1e6:.3g} µs, {result.cores} cores",
        style="bold",
    )
    table = Table()
    table.add_column("run by")
    for heading in ("steps/s", "x plain loop", f"share of {result.cores} cores"):
        table.add_column(heading, justify="right")
    for row in result.rows:
        figures = f"{row.steps_per_second:,.0f}", f"{row.ratio:.2f}", f"{row.share:.0%}"
        table.add_row(row.name, *figures, style="bold" if row.name == "auto" else None)
    console.print(table)
    for row in result.rows:
        if row.name == "auto":
            console.print(f"auto chose {row.choice}.")
            console.print(f"{verdict(result)}\n")
