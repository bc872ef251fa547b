"""Schedules: numbers that change while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.policies.networks.limits import AtLeastZero, PositiveShare


@dataclass(frozen=True)
class Schedule:
    """Goes from `begin` to `end` in a straight line over the first `share` of a run; without an end it stays."""

    begin: AtLeastZero
    end: AtLeastZero | None = None
    share: PositiveShare = 1.0

    def at(self, progress: float) -> float:
        """Return the number after so much of the run."""
        if self.end is None:
            return self.begin
        return self.begin + (self.end - self.begin) * min(1.0, progress / self.share)
