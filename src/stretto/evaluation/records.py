"""What an evaluation keeps of every episode."""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.core import AgentId, WorldStatistics
from stretto.errors import PolicyLost, UsageError, WorkerDied, WorldHung
from stretto.plain_records import record_from

RecordKey = tuple[str, str, int]
"""What identifies an episode within a plan: its mission, its label and its number."""

LARGEST = 1e150
"""Numbers beyond this are no results: their sums and differences need not be finite."""

_NO_JSON = (json.JSONDecodeError, UnicodeDecodeError, RecursionError)
_LOST = {error.__name__ for error in (PolicyLost, WorkerDied, WorldHung)}


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """Why an episode has no result: what was raised, or that somebody died or hung, and where.

    `step` is the number of the step in which that happened, from 1 on; None before the first one, as in a reset. `reproduce`
    is a command line that plays the episode again.
    """

    kind: str
    message: str
    policy: str | None = None
    agent: AgentId | None = None
    step: int | None = None
    traceback: str = ""
    reproduce: str = ""

    @property
    def lost(self) -> bool:
        """Whether a process died or hung: whoever plays the episode again should do so in a process of its own."""
        return self.kind in _LOST


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One episode of one policy (or mix of policies) on one mission.

    Everything but `timing` is a function of the plan: it does not depend on how the episode was computed. `label` names
    what is compared; `policies` says which policy each agent followed. Rewards are sums over the episode. `overdue`
    counts the steps in which an agent struck its deadline and the mission's default action was taken. In `statistics`,
    None stands for a number that is not finite, by which games mean what did not happen. Of those that a world tells by
    agent they have the mean, and `agent_statistics` has each by name and agent.
    """

    mission: str
    label: str
    episode: int
    seed: int
    steps: int
    rewards: Mapping[AgentId, float]
    policies: Mapping[AgentId, str]
    statistics: Mapping[str, float | None] = field(default_factory=dict)
    overdue: Mapping[AgentId, int] = field(default_factory=dict)
    failure: EpisodeFailure | None = None
    timing: Mapping[str, Any] = field(default_factory=dict)
    agent_statistics: Mapping[str, Mapping[AgentId, float | None]] = field(default_factory=dict)

    @property
    def key(self) -> RecordKey:
        """Its mission, its label and its number."""
        return self.mission, self.label, self.episode

    @property
    def reward(self) -> float:
        """The mean reward of an agent."""
        return sum(self.rewards.values()) / len(self.rewards) if self.rewards else 0.0

    @property
    def has_result(self) -> bool:
        """Whether it ended well, with a reward that can be compared."""
        return self.failure is None and abs(float(self.reward)) <= LARGEST

    @property
    def seconds(self) -> float:
        """How long it took by the clock, 0 if nobody knows."""
        seconds = float(self.timing.get("seconds") or 0.0)
        return seconds if 0.0 < seconds <= LARGEST else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return plain values, for a line of `episodes.jsonl`: None for numbers that are not finite, as JSON has none."""
        plain = {name: finite(getattr(self, name)) for name in ("rewards", "statistics")}
        return {**dataclasses.asdict(self), **plain}

    @classmethod
    def from_json(cls, values: Any) -> EpisodeRecord:
        """Return the record that `as_json` was called on.

        Raises:
            ValueError: if `values` are no such record; the message says which field is wrong.
        """
        if isinstance(values, dict):
            failure, rewards = values.get("failure"), values.get("rewards")
            if isinstance(rewards, dict):
                rewards = {agent: math.nan if reward is None else reward for agent, reward in rewards.items()}
            if isinstance(failure, dict):
                failure = record_from(EpisodeFailure, failure)
            values = {**values, "rewards": rewards, "failure": failure}
        return record_from(cls, values)


def episode_file_name(key: RecordKey) -> str:
    """Return what a file about an episode is called, without its suffix."""
    name = "-".join(map(str, key))
    safe = "".join(letter if letter.isalnum() or letter in "-_.+" else "_" for letter in name)
    return safe if safe == name else f"{safe}-{zlib.crc32(name.encode()):08x}"  # other names may look the same then


def split_statistics(
    offered: WorldStatistics,
) -> tuple[dict[str, float | None], dict[str, dict[AgentId, float | None]]]:
    """Return the statistics of an episode, with the mean of those that are by agent, and these by name and agent."""
    by_agent = {name: finite(value) for name, value in offered.items() if isinstance(value, Mapping)}
    plain: dict[str, float | None] = {}
    for name, value in offered.items():
        told = (
            [value] if not isinstance(value, Mapping) else [one for one in by_agent[name].values() if one is not None]
        )
        plain[name] = sum(told) / len(told) if told else None
    return finite(plain), by_agent


def finite(numbers: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return `numbers` with None for those that are not finite."""
    return {name: None if one is None or not math.isfinite(one) else one for name, one in numbers.items()}


def read_records(path: Path, *, whole: bool) -> list[EpisodeRecord]:
    """Return the records of a file with one a line; of one that is not `whole`, a last line that was cut off is left out.

    Raises:
        UsageError: if a line is damaged, or two are of the same episode. The file stays as it is.
    """
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    # Whatever stands after the last end of a line was being written when the process died.
    cut_off = lines.pop()
    records: dict[RecordKey, EpisodeRecord] = {}
    for number, line in enumerate([*lines, cut_off] if whole and cut_off else lines, 1):
        try:
            record = EpisodeRecord.from_json(json.loads(line))
        except (ValueError, RecursionError) as error:
            # What JSON says of it counts lines and columns of its own, of this one line.
            reason = "it is no JSON" if isinstance(error, _NO_JSON) else " ".join(str(error).split())
            raise UsageError(
                f"each line of {path} must be the record of an episode, but line {number} is damaged: {reason}; put the "
                f"file back from a copy, or remove that line, and --resume plays its episode again"
            ) from None
        if records.setdefault(record.key, record) is not record:
            raise UsageError(
                f"each episode has one line in {path}, and line {number} is another one of episode {record.episode} of "
                f"{record.label} on {record.mission}; remove one of the two"
            )
    return list(records.values())
