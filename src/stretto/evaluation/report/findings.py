"""Findings: the episodes of an evaluation and what they say, whichever way they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.evaluation.records import EpisodeRecord, RecordKey
from stretto.evaluation.statistics.summary import Summary


@dataclass(frozen=True, repr=False)
class Findings:
    """The episodes of an evaluation in the order of its plan, their summary, and a description of the plan."""

    records: tuple[EpisodeRecord, ...]
    summary: Summary
    plan: Mapping[str, Any]

    def points(self, values: Mapping[RecordKey, float]) -> Iterator[tuple[str, dict[str, list[tuple[int, float]]]]]:
        """Yield each mission with, by label, the numbers of its episodes and their `values`, where they have one."""
        found: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for record in self.records:
            points = found.setdefault(record.mission, {}).setdefault(record.label, [])
            if record.key in values:
                points.append((record.episode, values[record.key]))
        yield from found.items()
