"""Failed episodes in groups: one for each thing that went wrong, however often it did."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stretto.evaluation.records import EpisodeFailure, EpisodeRecord
from stretto.evaluation.statistics import has_result
from stretto.evaluation.wording import numbers_text

_OURS = Path(__file__).parent.parent
_PYTHONS = Path(sysconfig.get_path("stdlib"))


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
        if not has_result(record):
            failure = record.failure or EpisodeFailure("RewardNotFinite", f"the reward is {record.reward}")
            alike = record.label, failure.kind, last_place(failure.traceback) or failure.message
            found.setdefault(alike, []).append((failure, record))
    groups = [
        FailureGroup(pairs[0][0], last_place(pairs[0][0].traceback), tuple(record for _, record in pairs))
        for pairs in found.values()
    ]
    return sorted(groups, key=lambda group: -len(group.records))


def last_place(traceback: str) -> str:
    """Return where the user's code raised, crashed or hung: the file and line nearest to that of what is not ours.

    `traceback` is that of an exception, or what a process that crashed or hung wrote of its threads, the innermost calls
    first. Files of Python itself count only where there are no others.
    """
    _, mark, stack = traceback.partition("Current thread")
    if mark:
        traceback = stack.partition("\n\n")[0]
    places = [
        (Path(file), f"{file}:{line}")
        for file, line in re.findall(r'File "([^"<]+)", line (\d+)', traceback)
        if _OURS not in Path(file).parents
    ]
    if mark:
        places.reverse()
    users = [place for path, place in places if not _is_pythons(path)] or [place for _, place in places]
    return users[-1] if users else ""


def _is_pythons(path: Path) -> bool:
    return _PYTHONS in path.parents and "site-packages" not in path.parts
