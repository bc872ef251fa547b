"""A summary as a table of text that fits a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stretto.evaluation.report.wording import (
    interval_text,
    rating_text,
    score_interval_text,
    score_text,
    short_number,
    shorten,
)
from stretto.evaluation.statistics.summary import LabelSummary, PolicySummary, Summary

Row = LabelSummary | PolicySummary


def headings(summary: Summary, width: int) -> tuple[str, ...]:
    """Return what the columns of `lines` are.

    Deadlines struck and failures have one only if there were any. Normalized scores take the place of interquartile means.
    Where names would have too little room, there are no columns for how many steps there were, and how fast.
    """
    rows = _rows(summary)
    shown = [name for name in _FIGURES if name not in _RARE or any(_figure(name, row) not in {"0", ""} for row in rows)]
    shown.remove("IQM [95%]" if summary.normalize else "score [95%]")
    for name in _LESS_IMPORTANT:
        if _room(width, shown, rows) < min(_NAMES_WIDTH, sum(_name_widths(rows))):
            shown.remove(name)
    return "mission", "policy", *shown


def lines(summary: Summary, width: int) -> list[tuple[str, ...]]:
    """Return the lines of a table with the columns `headings`, to be joined by two spaces within `width`.

    Where there are several missions and normalized scores, lines for all of them together come last. Below a mix are its
    policies, indented, and their ratings. Names that are too long are cut in the middle; figures never are.
    """
    rows, shown = _rows(summary), headings(summary, width)[2:]
    room = _room(width, shown, rows)
    mission, policy = _name_widths(rows)
    # The shorter column keeps what it needs, up to half of the room.
    mission = min(mission, max(room // 2, room - policy))
    policy = min(policy, room - mission)
    return [
        (shorten(_mission(row), mission), shorten(_policy(row), policy), *(_figure(name, row) for name in shown))
        for row in rows
    ]


def text_table(summary: Summary, width: int) -> str:
    """Return a table for people, no wider than `width`."""
    table = [headings(summary, width), *lines(summary, width)]
    widths = _widths(table)
    return "\n".join(
        "  ".join(
            cell.ljust(room) if i < 2 else cell.rjust(room)
            for i, (cell, room) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )


def pooled_rows(summary: Summary) -> tuple[LabelSummary, ...]:
    """Return the rows for all missions together, if these say more than those of the missions."""
    several = len(summary.missions) > 1 and bool(summary.scales)
    return summary.overall if several else ()


def _rows(summary: Summary) -> tuple[Row, ...]:
    return tuple(_with_policies(summary))


def _with_policies(summary: Summary) -> Iterator[Row]:
    """Yield all rows, each followed, if it is that of a mix, by those of its policies."""
    rated = {row.label for row in summary.by_policy if row.rating is not None and len(summary.missions) > 1}
    pooled = pooled_rows(summary) or tuple(row for row in summary.overall if row.label in rated)
    for row in summary.by_mission + pooled:
        yield row
        yield from (one for one in summary.by_policy if (one.mission, one.label) == (row.mission, row.label))


def _iqm_text(row: Row) -> str:
    return short_number(row.iqm) + ("" if row.interval is None else f" {interval_text(row.interval)}")


def _score_text(row: LabelSummary) -> str:
    interval = "" if row.score_interval is None else f" {score_interval_text(row.score_interval)}"
    return score_text(row.score) + interval


def _rounds_text(timing: Mapping[str, float]) -> str:
    """Return how often agents were asked in a turn, where some were asked before it was their turn."""
    return f"{timing['rounds'] / timing['turns']:.1f}" if timing.get("turns") else ""


_FIGURES: dict[str, Callable[[Any], str]] = {
    "n": lambda row: str(row.episodes),
    "reward": lambda row: short_number(row.reward),
    "IQM [95%]": _iqm_text,
    "score [95%]": _score_text,
    "rating [95%]": lambda row: "" if isinstance(row, LabelSummary) else rating_text(row.rating, row.rating_interval),
    "steps": lambda row: short_number(row.steps),
    "steps/s": lambda row: short_number(row.timing.get("steps_per_second")),
    "rounds/turn": lambda row: _rounds_text(row.timing),
    "late": lambda row: str(row.overdue),
    "failed": lambda row: str(row.failures),
}
_ALSO_OF_POLICIES = ("n", "reward", "IQM [95%]", "rating [95%]")
_RARE = ("rating [95%]", "rounds/turn", "late", "failed")
_LESS_IMPORTANT = ("steps", "steps/s")
_NAMES_WIDTH = 24  # of a mission and a policy together: with less they are hard to tell apart


def _figure(name: str, row: Row) -> str:
    """Return the text of a figure; what only a whole mix has stands beside none of its policies."""
    return _FIGURES[name](row) if isinstance(row, LabelSummary) or name in _ALSO_OF_POLICIES else ""


def _mission(row: Row) -> str:
    return row.mission or "all"


def _policy(row: Row) -> str:
    return row.label if isinstance(row, LabelSummary) else f"  {row.policy}"


def _name_widths(rows: Iterable[Row]) -> list[int]:
    return _widths([("mission", "policy"), *((_mission(row), _policy(row)) for row in rows)])


def _room(width: int, shown: Sequence[str], rows: Iterable[Row]) -> int:
    """Return how wide the two names of a line may be together, beside the figures that are shown."""
    figures = [shown, *([_figure(name, row) for name in shown] for row in rows)]
    return width - 2 * (len(shown) + 1) - sum(_widths(figures))


def _widths(table: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*table, strict=True)]
