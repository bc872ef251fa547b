"""What came of a collection, on a terminal or for another program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.cli.options import TableOrJson
from stretto.cli.text import filled, screen_width
from stretto.collection.task_json import decoded
from stretto.evaluation.report.wording import counted, short_number, shorten

_LONGEST_TASK = 40


def print_summary(summary: Mapping[str, Any], output: TableOrJson) -> None:
    """Print the summary of a collection on stdout."""
    if output is TableOrJson.JSON:
        print(json.dumps(summary, indent=2))
        return
    console = Console(width=screen_width(), highlight=False)
    timing = summary["timing"]
    print(
        filled(
            f"{summary['mission']}, {summary['policy']}: {counted(summary['rollouts'], 'rollout')}, "
            f"{counted(summary['steps'], 'step')}"
        )
    )
    if timing:
        print(
            filled(
                f"{counted(timing['rollouts'], 'rollout')} in {timing['seconds']:.1f} s, "
                f"{timing['steps_per_second']:,} steps a second"
            )
        )
    print()
    console.print(_spreads(summary))
    if summary["tasks"]:
        print()
        console.print(_by_task(summary["tasks"]))
    print(f"\ndigest {summary['digest']}")


def _spreads(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("mean", "deviation", "least", "median", "most"):
        table.add_column(heading, justify="right")
    for name in ("returns", "lengths"):
        table.add_row(name, *(short_number(value) for value in summary[name].values()))
    return table


def _by_task(tasks: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold", max_width=_LONGEST_TASK)
    for heading in ("rollouts", "return", "deviation", "length"):
        table.add_column(heading, justify="right")
    for one in tasks:
        returns = one["returns"]
        numbers = (returns["mean"], returns["deviation"], one["lengths"]["mean"])
        task = escape(shorten(repr(decoded(one["task"])), _LONGEST_TASK))
        table.add_row(task, str(one["rollouts"]), *map(short_number, numbers))
    return table
