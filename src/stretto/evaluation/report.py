"""A finished evaluation: its episodes, what they say, and the files that both are kept in."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stretto.checkpoint import atomic_write_all
from stretto.errors import UsageError
from stretto.evaluation.bootstrap import Interval
from stretto.evaluation.records import EpisodeRecord, RecordKey
from stretto.evaluation.statistics import summarize
from stretto.evaluation.summary import Failed, LabelSummary, PolicySummary, Summary

EPISODES, SUMMARY, TABLE, PAGE = "episodes.jsonl", "summary.json", "episodes.csv", "report.html"
_GROUPS = ("rewards", "policies", "overdue", "statistics", "timing")  # columns of a table, after all others


@dataclass(frozen=True, repr=False)
class Report:
    """The episodes of an evaluation in the order of its plan, their summary, and a description of the plan.

    `plan` is free-form and must survive JSON. All that depends on the clock is under keys called `timing`: in the
    records, in the summary, and, if the caller puts any there, in the plan. Two runs of one plan differ in nothing
    else, and neither do their files: in `episodes.csv` these are the last columns, in `report.html` one section.
    """

    records: tuple[EpisodeRecord, ...]
    summary: Summary
    plan: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        records: Iterable[EpisodeRecord],
        plan: Mapping[str, Any],
        *,
        failed: Failed = "exclude",
        seed: int = 0,
        missions: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
    ) -> Report:
        """Summarize `records`, given in any order; `summarize` says what the other arguments mean."""
        records = list(records)
        summary = summarize(records, failed=failed, seed=seed, missions=missions, labels=labels)
        missions, labels = summary.missions, summary.labels
        records.sort(key=lambda record: (missions.index(record.mission), labels.index(record.label), record.episode))
        # Through JSON, so that a plan is the same before it is saved and after it was loaded.
        return cls(tuple(records), summary, json.loads(_json(plan)))

    def points(self, values: Mapping[RecordKey, float]) -> Iterator[tuple[str, dict[str, list[tuple[int, float]]]]]:
        """Yield each mission with, by label, the numbers of its episodes and their `values`, where they have one."""
        found: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for record in self.records:
            points = found.setdefault(record.mission, {}).setdefault(record.label, [])
            if record.key in values:
                points.append((record.episode, values[record.key]))
        yield from found.items()

    def headings(self, width: int = 80) -> tuple[str, ...]:
        """Return what the columns of `rows` are.

        Deadlines struck and failures have one only if there were any; where names would have too little room, there are
        no columns for how many steps there were, and how fast.
        """
        rows = self._table_rows()
        shown = [
            name for name in _FIGURES if name not in _RARE or any(_figure(name, row) not in {"0", ""} for row in rows)
        ]
        for name in _LESS_IMPORTANT:
            if _room(width, shown, rows) < min(_NAMES_WIDTH, sum(_name_widths(rows))):
                shown.remove(name)
        return "mission", "policy", *shown

    def rows(self, width: int = 80) -> list[tuple[str, ...]]:
        """Return the lines of a table with the columns `headings`, to be joined by two spaces within `width`.

        Where there are several missions, lines for all of them together come last. Below a mix are its policies,
        indented. Names that are too long for the width are cut in the middle; figures never are.
        """
        rows, shown = self._table_rows(), self.headings(width)[2:]
        room = _room(width, shown, rows)
        mission, policy = _name_widths(rows)
        # The shorter column keeps what it needs, up to half of the room.
        mission = min(mission, max(room // 2, room - policy))
        policy = min(policy, room - mission)
        return [
            (shorten(_mission(row), mission), shorten(_policy(row), policy), *(_figure(name, row) for name in shown))
            for row in rows
        ]

    def table(self, width: int = 80) -> str:
        """Return a table for people, no wider than `width`."""
        lines = [self.headings(width), *self.rows(width)]
        widths = _widths(lines)
        return "\n".join(
            "  ".join(
                cell.ljust(room) if i < 2 else cell.rjust(room)
                for i, (cell, room) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        missions, labels = len(self.summary.missions), len(self.summary.labels)
        return f"<Report of {len(self.records)} episodes, {missions} missions, {labels} policies; print it for a table>"

    def _table_rows(self) -> tuple[LabelSummary | PolicySummary, ...]:
        several = len(self.summary.missions) > 1
        return tuple(self._with_policies(self.summary.by_mission + (self.summary.overall if several else ())))

    def _with_policies(self, rows: Iterable[LabelSummary]) -> Iterator[LabelSummary | PolicySummary]:
        """Yield `rows`, each followed, if it is that of a mix, by those of its policies."""
        for row in rows:
            yield row
            yield from (one for one in self.summary.by_policy if (one.mission, one.label) == (row.mission, row.label))

    def to_json(self) -> dict[str, Any]:
        """Return what `summary.json` holds: the plan and the summary."""
        return {"plan": dict(self.plan), "summary": self.summary.as_json()}

    def to_jsonl(self) -> str:
        """Return what `episodes.jsonl` holds: an episode a line, with sorted keys."""
        return "".join(_json(record.as_json()) + "\n" for record in self.records)

    def to_csv(self) -> str:
        """Return what `episodes.csv` holds: an episode a line, a column for all that any of them has."""
        lines = [dict(_cells(record)) for record in self.records]
        columns = sorted(
            dict.fromkeys(column for line in lines for column in line),
            key=lambda column: _GROUPS.index(group) if (group := column.partition(".")[0]) in _GROUPS else -1,
        )
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def to_html(self) -> str:
        """Return what `report.html` holds: a page that needs no other file."""
        from stretto.evaluation.html import render_html  # which is built on this module

        return render_html(self)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write all files into `folder`, in place of those that are there, and return the folder.

        Each file is complete at any time: it is the old one until the new ones are all written.
        """
        folder = Path(folder)
        texts = {
            EPISODES: self.to_jsonl(),
            TABLE: self.to_csv(),
            PAGE: self.to_html(),
            SUMMARY: _json(self.to_json(), indent=2) + "\n",
        }
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_all({folder / name: text for name, text in texts.items()})
        return folder

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Report:
        """Return the report that was saved in `folder`.

        Raises:
            UsageError: if there is none.
        """
        folder = Path(folder)
        if missing := [name for name in (SUMMARY, EPISODES) if not (folder / name).is_file()]:
            raise UsageError(
                f"a folder of a report must hold {SUMMARY} and {EPISODES}, but {folder} has no {missing[0]}"
            )
        found = json.loads((folder / SUMMARY).read_text("utf-8"))
        with (folder / EPISODES).open(encoding="utf-8") as lines:
            records = tuple(EpisodeRecord.from_json(json.loads(line)) for line in lines)
        return cls(records, Summary.from_json(found["summary"]), found["plan"])


def short_number(value: float | None) -> str:
    """Return `value` in six characters or fewer (eight at the ends of what a float can hold), "-" for None."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 99_999.5 or 0 < size < 0.0005:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e{int(power)}"
    return f"{value:.{3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0}f}"


def interval_text(interval: Interval | None) -> str:
    """Return both ends of an interval as short numbers, "-" for None."""
    return "-" if interval is None else f"[{short_number(interval[0])}, {short_number(interval[1])}]"


def shorten(name: str, most: int) -> str:
    """Return `name` in `most` characters or fewer: without its middle if it is longer, as both ends tell names apart."""
    if len(name) <= most:
        return name
    end = max(0, most - 1) // 2
    return name[: max(0, most - 1 - end)] + "…" + name[len(name) - end :]


def _iqm_text(row: LabelSummary | PolicySummary) -> str:
    return short_number(row.iqm) + ("" if row.interval is None else f" {interval_text(row.interval)}")


_FIGURES: dict[str, Callable[[Any], str]] = {
    "n": lambda row: str(row.episodes),
    "reward": lambda row: short_number(row.reward),
    "IQM [95%]": _iqm_text,
    "steps": lambda row: short_number(row.steps),
    "steps/s": lambda row: short_number(row.timing.get("steps_per_second")),
    "late": lambda row: str(row.overdue),
    "failed": lambda row: str(row.failures),
}
_ALSO_OF_POLICIES = ("n", "reward", "IQM [95%]")
_RARE = ("late", "failed")
_LESS_IMPORTANT = ("steps", "steps/s")
_NAMES_WIDTH = 24  # of a mission and a policy together: with less they are hard to tell apart


def _figure(name: str, row: LabelSummary | PolicySummary) -> str:
    """Return the text of a figure; what only a whole mix has stands beside none of its policies."""
    return _FIGURES[name](row) if isinstance(row, LabelSummary) or name in _ALSO_OF_POLICIES else ""


def _mission(row: LabelSummary | PolicySummary) -> str:
    return row.mission or "all"


def _policy(row: LabelSummary | PolicySummary) -> str:
    return row.label if isinstance(row, LabelSummary) else f"  {row.policy}"


def _name_widths(rows: Iterable[LabelSummary | PolicySummary]) -> list[int]:
    return _widths([("mission", "policy"), *((_mission(row), _policy(row)) for row in rows)])


def _room(width: int, shown: Sequence[str], rows: Iterable[LabelSummary | PolicySummary]) -> int:
    """Return how wide the two names of a line may be together, beside the figures that are shown."""
    figures = [shown, *([_figure(name, row) for name in shown] for row in rows)]
    return width - 2 * (len(shown) + 1) - sum(_widths(figures))


def _widths(lines: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _cells(record: EpisodeRecord) -> Iterator[tuple[str, Any]]:
    yield from (("mission", record.mission), ("label", record.label), ("episode", record.episode))
    yield from (("seed", record.seed), ("steps", record.steps))
    failure = record.failure
    yield "failure", None if failure is None else f"{failure.kind}: {failure.message}"
    # An episode that failed has no reward; a zero would be taken for one.
    yield "reward", None if failure else record.reward
    for name in _GROUPS:
        for key, value in sorted(getattr(record, name).items()):
            yield f"{name}.{key}", value


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, sort_keys=True, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    """Return what JSON can hold of the values that games and plans have in them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a report holds numbers, strings, lists and dicts, got {value!r}; convert it to one of them")
