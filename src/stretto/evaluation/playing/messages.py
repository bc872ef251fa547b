"""What an episode worker is asked."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.evaluation.plan import Facts, Task


@dataclass(frozen=True, slots=True)
class Ready:
    """Message: answer as soon as you can be given something."""


@dataclass(frozen=True, slots=True)
class Look:
    """Message: say what a plan must know of a mission with an entry; without `acting`, without letting anybody act."""

    mission: int
    entry: int
    acting: bool = True


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Message: play the first steps of each mission and of each entry, and return a digest of all that was seen and done."""


@dataclass(frozen=True, slots=True)
class LookAtPicture:
    """Message: say why a mission cannot be filmed, if it cannot."""

    mission: int


@dataclass(frozen=True, slots=True)
class PlayTask:
    """Message: play the episodes of a task on so many cores; `apart`: with the policies in other processes."""

    task: Task
    facts: Facts
    cores: int = 1
    apart: bool = False
