"""`stretto report` and `stretto compare`: evaluations that lie in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from stretto.cli import options
from stretto.cli.options import Format
from stretto.cli.results import print_report
from stretto.cli.text import say
from stretto.errors import UsageError
from stretto.evaluation.journal import PARTIAL
from stretto.evaluation.report.report import EPISODES, PAGE, Report
from stretto.evaluation.runs import compare, rebuild
from stretto.evaluation.statistics.summary import Failed
from stretto.run_folder import PLAN, changes_told


def report_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of an evaluation.")],
    output: options.Output = Format.TABLE,
) -> None:
    """Build the report of an evaluation again, from its episodes."""
    report = rebuild(folder)
    print_report(report, output)
    say_changes(report)
    if (folder / PARTIAL).exists():
        say(f"stretto: this evaluation is not finished; go on with: stretto eval --resume {folder}")
    say(f"report: {folder / PAGE}")


def compare_command(
    context: typer.Context,
    folders: Annotated[list[Path], typer.Argument(metavar="DIR DIR...", help="Folders of evaluations.")],
    failed: options.Failed = "exclude",
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Compare missions although their code or packages have changed.")
    ] = False,
    output: options.Output = Format.TABLE,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="A new folder for a report on both.")] = None,
) -> None:
    """Set evaluations side by side, on the episodes they share."""
    if out is not None and any((out / name).exists() for name in (EPISODES, PARTIAL, PLAN)):
        raise UsageError(f"{out} holds an evaluation, which would be overwritten; choose another folder")
    report = compare(
        folders, failed=cast(Failed, failed), accept_changes=accept_changes, command=options.command_line(context)
    )
    print_report(report, output)
    for note in report.plan["notes"]:
        say(f"note: {note}")
    if out is not None:
        say(f"report: {report.save(out) / PAGE}")


def say_changes(report: Report) -> None:
    """Warn of results that more than one version of the code produced."""
    for one in changes_told(report.plan):
        say(f"stretto: warning: not all episodes were played by the same code: {one}")
