"""What workers that play shares of a collection are told, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.collection.experience import Segment
    from stretto.policies.ahead import Counted
    from stretto.policies.questions import Weights


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Message: play the first segment of one slot, let a learner learn from it, and return a digest of both."""


@dataclass(frozen=True, slots=True)
class Act:
    """Message: act by these weights from now on; policies are named by their numbers."""

    version: int
    weights: Weights

    def __str__(self) -> str:
        return f"weights {self.version}"


@dataclass(frozen=True, slots=True)
class GoOn:
    """Message: play a share from where its `state` says, or from the beginning."""

    share: range
    state: Mapping[str, Any] | None

    def __str__(self) -> str:
        return f"going on with {told_slots(self.share)}"


@dataclass(frozen=True, slots=True)
class Gather:
    """Message: play the next segment of a share."""

    share: range

    def __str__(self) -> str:
        return f"segment of {told_slots(self.share)}"


@dataclass(frozen=True, slots=True)
class Gathered:
    """A segment, the state after it if that can be gone on with, and how agents were asked for it."""

    segment: Segment
    state: Mapping[str, Any] | None
    counted: Counted


def told_slots(share: range) -> str:
    """Say which slots a share has."""
    return f"slot {share.start}" if len(share) == 1 else f"slots {share.start} to {share.stop - 1}"
