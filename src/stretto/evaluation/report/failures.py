"""Failed episodes in groups: one for each thing that went wrong, however often it did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stretto.evaluation.playing.tracebacks import last_place
from stretto.evaluation.records import EpisodeFailure, EpisodeRecord
from stretto.evaluation.report.wording import numbers_text


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Episodes of one label that failed in the same way; `first` stands for all of them."""

    first: EpisodeFailure
    place: str
    records: tuple[EpisodeRecord, ...]

    @property
    def label(self) -> str:
        """Whose episodes they are."""
        return self.records[0].label

    def where(self) -> dict[str, str]:
        """Return by mission which episodes they are."""
        numbers: dict[str, list[int]] = {}
        for record in self.records:
            numbers.setdefault(record.mission, []).append(record.episode)
        return {mission: numbers_text(found) for mission, found in numbers.items()}


def group_failures(records: Iterable[EpisodeRecord]) -> list[FailureGroup]:
    """Return the failures among `records`, the most frequent ones first.

    Failures are alike if they are of one label, of one kind, and raised at one line of the user's code; where no line is
    known, if their messages are the same.
    """
    found: dict[tuple[str, str, str], list[tuple[EpisodeFailure, EpisodeRecord]]] = {}
    for record in records:
        if not record.has_result:
            failure = record.failure or EpisodeFailure("RewardNotFinite", f"the reward is {record.reward}")
            alike = record.label, failure.kind, last_place(failure.traceback) or failure.message
            found.setdefault(alike, []).append((failure, record))
    groups = [
        FailureGroup(pairs[0][0], last_place(pairs[0][0].traceback), tuple(record for _, record in pairs))
        for pairs in found.values()
    ]
    return sorted(groups, key=lambda group: -len(group.records))
