"""A finished evaluation: its episodes, what they say, and the files that both are kept in."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stretto.checkpoint import atomic_write_all
from stretto.errors import UsageError
from stretto.evaluation.films.film_files import saved_films
from stretto.evaluation.records import EpisodeRecord, RecordKey, read_records
from stretto.evaluation.report.findings import Findings
from stretto.evaluation.report.html import render_fragment, render_html
from stretto.evaluation.report.text_table import headings, lines, text_table
from stretto.evaluation.report.wording import counted
from stretto.evaluation.statistics.scales import References
from stretto.evaluation.statistics.summarize import summarize
from stretto.evaluation.statistics.summary import Failed, Summary

EPISODES, SUMMARY, TABLE, PAGE = "episodes.jsonl", "summary.json", "episodes.csv", "report.html"
_GROUPS = ("rewards", "policies", "overdue", "statistics", "agent_statistics", "timing")
"""The last columns of a table, by what they are about."""


class Report(Findings):
    """The episodes of an evaluation in the order of its plan, their summary, and a description of the plan.

    `plan` is free-form and must survive JSON. All that depends on the clock is under keys called `timing`: in the
    records, in the summary, and, if the caller puts any there, in the plan. Two runs of one plan differ in nothing
    else, and neither do their files: in `episodes.csv` these are the last columns, in `report.html` one section.
    """

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
        normalize: References | None = None,
    ) -> Report:
        """Summarize `records`, given in any order; `summarize` says what the other arguments mean."""
        records = list(records)
        summary = summarize(records, failed=failed, seed=seed, missions=missions, labels=labels, normalize=normalize)
        missions, labels = summary.missions, summary.labels
        records.sort(key=lambda record: (missions.index(record.mission), labels.index(record.label), record.episode))
        # Through JSON, so that a plan is the same before it is saved and after it was loaded.
        return cls(tuple(records), summary, json.loads(_json(plan)))

    def headings(self, width: int = 80) -> tuple[str, ...]:
        """Return what the columns of `rows` are, see `text_table`."""
        return headings(self.summary, width)

    def rows(self, width: int = 80) -> list[tuple[str, ...]]:
        """Return the lines of a table with the columns `headings`, to be joined by two spaces within `width`."""
        return lines(self.summary, width)

    def table(self, width: int = 80) -> str:
        """Return a table for people, no wider than `width`."""
        return text_table(self.summary, width)

    def __str__(self) -> str:
        failures = [record.failure for record in self.records if record.failure is not None]
        if not failures:
            return self.table()
        return f"{self.table()}\n{len(failures):,} of {self._sizes()[0]} failed; the first: {failures[0].message}"

    def __repr__(self) -> str:
        return f"<Report of {', '.join(self._sizes())}; print it for a table>"

    def _sizes(self) -> list[str]:
        sizes = (
            (len(self.records), "episode"),
            (len(self.summary.missions), "mission"),
            (len(self.summary.labels), "policy"),
        )
        return [counted(size, noun) for size, noun in sizes]

    def to_json(self) -> dict[str, Any]:
        """Return what `summary.json` holds: the plan and the summary."""
        return {"plan": dict(self.plan), "summary": self.summary.as_json()}

    def to_jsonl(self) -> str:
        """Return what `episodes.jsonl` holds: an episode a line, with sorted keys."""
        return "".join(_json(record.as_json()) + "\n" for record in self.records)

    def to_csv(self) -> str:
        """Return what `episodes.csv` holds: an episode a line, a column for all that any of them has."""
        columns, episodes = self._episode_cells()
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(episodes)
        return text.getvalue()

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with the rows and columns of `to_csv`.

        Raises:
            UsageError: if pandas is not installed.
        """
        if importlib.util.find_spec("pandas") is None:
            raise UsageError("a data frame needs pandas; pip install pandas, or read what to_csv() returns")
        import pandas as pd

        columns, episodes = self._episode_cells()
        return pd.DataFrame(episodes, columns=columns)

    def _episode_cells(self) -> tuple[list[str], list[dict[str, Any]]]:
        """Return the columns of a table of episodes, and its rows by column."""
        episodes = [dict(_cells(record)) for record in self.records]
        columns = sorted(
            dict.fromkeys(column for episode in episodes for column in episode),
            key=lambda column: _GROUPS.index(group) if (group := column.partition(".")[0]) in _GROUPS else -1,
        )
        return columns, episodes

    def _repr_html_(self) -> str:
        """Return what notebooks show: the answer and the table."""
        return render_fragment(self)

    def to_html(self, films: Mapping[RecordKey, Path] | None = None) -> str:
        """Return what `report.html` holds: a page that needs no other file, with films of episodes, if there are any."""
        return render_html(self, films)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write all files into `folder`, in place of those that are there, and return the folder.

        Films of its episodes that are in the folder become part of the page.
        Each file is complete at any time: it is the old one until the new ones are all written.
        """
        folder = Path(folder)
        texts = {
            EPISODES: self.to_jsonl(),
            TABLE: self.to_csv(),
            PAGE: self.to_html(saved_films(folder, self.records)),
            SUMMARY: _json(self.to_json(), indent=2) + "\n",
        }
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_all({folder / name: text for name, text in texts.items()})
        return folder

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Report:
        """Return the report that was saved in `folder`.

        Raises:
            UsageError: if there is none, or it is damaged.
        """
        folder = Path(folder)
        if missing := [name for name in (SUMMARY, EPISODES) if not (folder / name).is_file()]:
            raise UsageError(
                f"a folder of a report must hold {SUMMARY} and {EPISODES}, but {folder} has no {missing[0]}"
            )
        try:
            found = json.loads((folder / SUMMARY).read_bytes())
            summary, plan = Summary.from_json(found["summary"]), dict(found["plan"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise UsageError(
                f"{folder / SUMMARY} must be the summary of an evaluation, but is damaged; build it again with "
                f"stretto report {folder}"
            ) from None
        return cls(tuple(read_records(folder / EPISODES, whole=True)), summary, plan)


def _cells(record: EpisodeRecord) -> Iterator[tuple[str, Any]]:
    yield from (("mission", record.mission), ("label", record.label), ("episode", record.episode))
    yield from (("seed", record.seed), ("steps", record.steps))
    failure = record.failure
    yield "failure", None if failure is None else f"{failure.kind}: {failure.message}"
    # An episode that failed has no reward; a zero would be taken for one.
    yield "reward", None if failure else record.reward
    for name in _GROUPS:
        for key, value in sorted(getattr(record, name).items()):
            if isinstance(value, Mapping):
                yield from ((f"{name}.{key}.{agent}", one) for agent, one in sorted(value.items()))
            else:
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
