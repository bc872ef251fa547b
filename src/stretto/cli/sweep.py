"""`stretto sweep`: which settings agents learn best with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.cli import options
from stretto.cli.arguments import is_given, keep_arguments
from stretto.cli.options import DONE, FAILED, TableOrJson
from stretto.cli.results import prints_on_stderr
from stretto.cli.text import filled, say, screen_width, users_code
from stretto.cli.train import check_installed
from stretto.errors import UsageError
from stretto.evaluation.report.wording import counted, interval_text, short_number

if TYPE_CHECKING:
    from stretto.sweeps.results import SweepReport

_MOST_ROWS = 20


def sweep_command(  # noqa: PLR0913, PLR0917  one parameter an option
    context: typer.Context,
    mission: options.Mission = None,
    learner: Annotated[
        str | None, typer.Option("--learner", metavar="NAME", help="How agents learn: as for stretto train.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=VALUES",
            help="A setting that is varied: ppo.batch=32,64,128, num_envs=4..16, or ppo.learning_rate=log:1e-4..1e-2; can be "
            "repeated.",
        ),
    ] = None,
    candidates: Annotated[
        int | None, options.whole("--candidates", help="How many combinations to try; by default all of them.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="grid|random|optuna", help="What chooses the combinations.")
    ] = None,
    round_size: Annotated[
        int, options.whole("--round-size", help="How many combinations optuna chooses at once, by those before.")
    ] = 4,
    seeds: Annotated[
        str,
        typer.Option("--seeds", metavar="FIRST..LAST|N,N,...", help="Train with each of these, for each candidate."),
    ] = "0..2",
    steps: Annotated[int | None, options.whole("--steps", help="How many environment steps a run has.")] = None,
    envs: Annotated[int | None, options.whole("--envs", help="How many environments agents learn in at once.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings for all runs, in a YAML file.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting for all runs; can be repeated.")
    ] = None,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    max_steps: Annotated[int | None, options.whole("--max-steps", help="The most steps of an episode.")] = None,
    seed: Annotated[int, options.whole("--seed", help="The seed of what the engine draws.")] = 0,
    eval_every: Annotated[
        int | None, options.whole("--eval-every", help="After how many steps agents play held-out episodes.")
    ] = None,
    jobs: options.Jobs = None,
    out: options.Out = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="Go on with a sweep; with --candidates, try more of them."),
    ] = None,
    accept_changes: options.AcceptChanges = False,
    allow_import: options.AllowImport = False,
    output: Annotated[TableOrJson, typer.Option("--format", help="How results are printed.")] = TableOrJson.TABLE,
    quiet: options.Quiet = False,
) -> int:
    """Train with many settings and seeds, and rank the settings."""
    check_installed()
    from stretto.cli.train_arguments import Asked, asked_with, layers_of
    from stretto.sweeps.space import read_space
    from stretto.sweeps.sweep import SWEEP
    from stretto.training.config import plain

    @dataclass(frozen=True)
    class AskedSweep(Asked):
        over: Mapping[str, Any] = field(default_factory=dict)
        seeds: str = "0..2"
        candidates: int | None = None
        engine: str | None = None
        round_size: int = 4

    values = {**locals(), "over": read_space(over or ())}
    folder = out or resume
    if folder is None or (out is not None and resume is not None):
        raise UsageError(f"a sweep is kept in one folder, got --out {out} and --resume {resume}; give one of them")
    asked = asked_with(context, values, resume, AskedSweep, SWEEP)
    if is_given(context, "over") and resume is None and not asked.over:
        raise UsageError("--over needs a setting and its values; write --over ppo.batch=32,64")
    found = asked.missions(allow_import=allow_import)
    asked, settled = asked.settled(found[0], layers_of(values))
    how: dict[str, Any] = {
        "seeds": options.read_seed_range(asked.seeds),
        **{name: getattr(asked, name) for name in ("candidates", "engine", "round_size", "seed", "max_steps")},
        "config": plain(settled),
        "jobs": jobs,
        "resume": resume is not None,
        "accept_changes": accept_changes,
        "command": options.command_line(context),
    }
    report = _swept(found, asked, folder, how, quiet=quiet)
    _print(report, output)
    say(f"report: {folder / 'report.html'}")
    return FAILED if any(one.failures for one in report.candidates) else DONE


def _swept(found: Any, asked: Any, folder: Path, how: Mapping[str, Any], *, quiet: bool) -> SweepReport:
    """Do the sweep; when interrupted, say how to go on."""
    from stretto.cli.sweep_progress import shown_sweep
    from stretto.sweeps.progress import SweepProgress
    from stretto.sweeps.sweep import SWEEP, sweep

    progress = SweepProgress(begun=lambda: keep_arguments(asked, folder, SWEEP, resume=how["resume"]))
    try:
        with prints_on_stderr(), shown_sweep(progress, quiet=quiet), users_code("training"):
            return sweep(list(found), asked.over, folder, **how, progress=progress)
    except KeyboardInterrupt:
        if progress.folder is not None:
            say(f"stretto: {progress.done} of {counted(progress.total, 'run')} are over")
            say(f"stretto: go on with: stretto sweep --resume {folder}")
        raise


def _print(report: SweepReport, output: TableOrJson) -> None:
    from stretto.sweeps.space import value_text

    if output is TableOrJson.JSON:
        print(json.dumps(report.summary(), indent=2))
        return
    tried = f"{counted(len(report.candidates), 'candidate')}, {counted(len(report.seeds), 'seed')}"
    print(filled(f"{report.mission}: {tried}, engine {report.engine}"))
    table = Table(box=None, pad_edge=False)
    keys = list(report.candidates[0].settings)
    for heading in ("candidate", *keys, "return", "interval"):
        table.add_column(heading, justify="right", overflow="fold")
    for one in report.candidates[:_MOST_ROWS]:
        good = one.score is not None
        figures = (
            [short_number(one.score), interval_text(report.intervals.get(one.number))] if good else ["failed", "-"]
        )
        shown = [escape(value_text(value)) for value in one.settings.values()]
        table.add_row(str(one.number), *shown, *figures)
    Console(width=screen_width(), highlight=False).print(table)
    if len(report.candidates) > _MOST_ROWS:
        print(f"and {counted(len(report.candidates) - _MOST_ROWS, 'more candidate')}")
    for one in report.candidates:
        for seed, why in one.failures.items():
            say(f"candidate {one.number}, seed {seed}: {why}")
