"""How far an evaluation is: episodes, steps, rewards so far, and the time that is left.

Policies differ in cost, often by a factor of a hundred: the time left is what the episodes that are left will cost, each by
what its own mission and policy have cost so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from stretto.evaluation.records import EpisodeRecord

Pair = tuple[str, str]
"""A mission and a label."""

_LONG_SECONDS, _LONG_STEPS, _TIMES_LONGER = 30.0, 10_000, 10
"""An episode without a limit goes on for ever, it seems, after so long, so many steps, and so many times those of others."""


@dataclass(frozen=True, slots=True)
class RunningTask:
    """Episodes that a worker plays now: `steps` is how many it has made in each, `seconds` how long it has been at it."""

    mission: str
    label: str
    episodes: tuple[int, ...]
    steps: int
    seconds: float


@dataclass(slots=True)
class PairProgress:
    """How far one mission is with one policy."""

    total: int
    step_limit: int | None = None
    done: int = 0
    failed: int = 0
    steps: int = 0
    longest: int = 0
    rewards: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    @property
    def reward(self) -> float | None:
        """The mean reward so far."""
        return math.fsum(self.rewards) / len(self.rewards) if self.rewards else None


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """About how many seconds are left; `at_least`: more, since a policy has not finished any episode yet."""

    seconds: float
    at_least: bool


class Progress:
    """What `evaluate` tells of its episodes, to be looked at from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._running: Callable[[], Sequence[RunningTask]] = lambda: ()
        self.pairs: dict[Pair, PairProgress] = {}

    def begin(self, totals: Mapping[Pair, int], step_limits: Mapping[str, int | None]) -> None:
        """Say how many episodes there will be, and after how many steps those of a mission end at the latest."""
        self.pairs = {pair: PairProgress(total, step_limits[pair[0]]) for pair, total in totals.items()}

    @contextmanager
    def playing(self, running: Callable[[], Sequence[RunningTask]]) -> Iterator[None]:
        """Say that the body plays, and how to see what it plays; time is counted from now on."""
        self._began, self._running = self._clock(), running
        try:
            yield
        finally:
            self._running = lambda: ()

    def add(self, record: EpisodeRecord, *, now: bool = True) -> None:
        """Count an episode; without `now`, one that was played in an earlier run, and took no time in this one."""
        pair = self.pairs.get((record.mission, record.label))
        if pair is None:
            return
        pair.done += 1
        pair.steps += record.steps
        if record.has_result:
            pair.rewards.append(record.reward)
            pair.longest = max(pair.longest, record.steps)
        else:
            pair.failed += 1
        if now:
            pair.costs.append(record.seconds)

    @property
    def seconds(self) -> float:
        """How long it has been played."""
        return self._clock() - self._began

    @property
    def running(self) -> Sequence[RunningTask]:
        """What is played now."""
        return self._running()

    @property
    def episodes(self) -> tuple[int, int]:
        """How many episodes are finished, and of how many."""
        pairs = list(self.pairs.values())
        return sum(pair.done for pair in pairs), sum(pair.total for pair in pairs)

    @property
    def steps(self) -> int:
        """How many steps were made, also in episodes that are played now."""
        now = sum(task.steps * len(task.episodes) for task in self.running)
        return now + sum(pair.steps for pair in list(self.pairs.values()))

    def time_left(self) -> TimeLeft | None:
        """Estimate how long it will still take; None as long as no episode is finished."""
        pairs, running = dict(self.pairs), list(self.running)
        spent = [cost for pair in pairs.values() for cost in list(pair.costs)]
        if not spent or not any(spent):
            return None
        left, longest = 0.0, 0.0
        under_way = _by_pair(running)
        for pair, one in pairs.items():
            cost = self._cost(pair, spent)
            tasks = under_way.get(pair, [])
            left += cost * (one.total - one.done)
            for task in tasks:
                count = len(task.episodes)
                left -= min(task.seconds, cost * count)
                longest = max(longest, cost * count - task.seconds)
        # Several workers, and what an episode costs beyond its steps, are in how much was done in how long.
        done = math.fsum(spent) + math.fsum(task.seconds for task in running)
        known = {label for (_, label), one in pairs.items() if one.costs}
        unknown = any(label not in known and one.done < one.total for (_, label), one in pairs.items())
        return TimeLeft(max(left * self.seconds / done, longest, 0.0), unknown)

    def _cost(self, pair: Pair, spent: Sequence[float]) -> float:
        """Return what an episode costs: by its own mission and policy, else by its policy, its mission, or all."""
        pairs = dict(self.pairs)
        own = list(pairs[pair].costs)
        same_label = [cost for (_, label), one in pairs.items() if label == pair[1] for cost in list(one.costs)]
        same_mission = [cost for (mission, _), one in pairs.items() if mission == pair[0] for cost in list(one.costs)]
        costs = own or same_label or same_mission or spent
        return math.fsum(costs) / len(costs)

    def endless(self) -> list[RunningTask]:
        """Return what is played that may never end: it has no limit of steps, and is far beyond all that ended."""
        found = []
        for task in self.running:
            pair = self.pairs.get((task.mission, task.label))
            if pair is None or pair.step_limit is not None or task.seconds < _LONG_SECONDS:
                continue
            ended = max(one.longest for (mission, _), one in list(self.pairs.items()) if mission == task.mission)
            if task.steps >= max(_LONG_STEPS, _TIMES_LONGER * ended):
                found.append(task)
        return found


def _by_pair(tasks: Iterable[RunningTask]) -> dict[Pair, list[RunningTask]]:
    found: dict[Pair, list[RunningTask]] = {}
    for task in tasks:
        found.setdefault((task.mission, task.label), []).append(task)
    return found
