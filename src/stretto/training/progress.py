"""What is known of a run so far: returns, updates and figures of each agent, and how long what took."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stretto.core import AgentId
from stretto.training.loop import Interval, Overlap
from stretto.training.phases import AWAITING

RECENT = 100
"""An agent's return is the mean of so many episodes that ended last; those whose return is not finite do not count."""


@dataclass
class AgentProgress:
    """What an agent has done so far; `metrics` are those of its last update. `stopped` says why it learns no more."""

    episodes: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    metrics: dict[str, float] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def mean_return(self) -> float | None:
        """The mean return of the episodes that ended last; `None` before the first one."""
        return math.fsum(self.recent) / len(self.recent) if self.recent else None

    @property
    def updates(self) -> int:
        """How many updates its weights had."""
        return int(self.metrics.get("updates", 0))


class TrainingProgress:
    """Takes in a run's intervals; others may look at it meanwhile."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.total = self.steps = self.intervals = 0
        self.agents: dict[AgentId, AgentProgress] = {}
        self.evaluations: list[dict[str, Any]] = []
        self._began, self._spent = clock(), dict[str, float]()
        self.overlap: dict[str, float] = {}  # of collecting and learning, where they overlap
        self._learned, self._lags = 0.0, 0
        self._apart = 0.0  # seconds that were spent on evaluations
        self._before = 0.0  # seconds that the run took before it was gone on with

    def begin(self, total_steps: int) -> None:
        """Take note that a run of so many steps begins now, or goes on from what was loaded."""
        self.total, self._began = total_steps, self._clock() - self._before

    def add(self, interval: Interval) -> dict[str, Any]:
        """Take in an interval; return its line of `metrics.jsonl`, with all that the clock says under `timing`."""
        self.steps, self.intervals = interval.steps, interval.number
        for agent, metrics in interval.metrics.items():
            mine = self.agents.setdefault(agent, AgentProgress())
            mine.metrics = dict(metrics) or mine.metrics
            mine.recent.extend(filter(math.isfinite, interval.returns.get(agent, ())))
            mine.episodes += len(interval.returns.get(agent, ()))
        for failure in interval.failures:
            self.agents[failure.agent].stopped = str(failure)
        for phase, seconds in interval.seconds.items():
            self._spent[phase] = self._spent.get(phase, 0.0) + seconds
        if interval.overlap is not None:
            self._overlaps(interval.overlap)
        timing: dict[str, Any] = {
            "seconds": round(self.seconds, 3),
            "steps_per_second": round(self.steps_per_second, 1),
        }
        timing.update(interval.asking._asdict() if interval.asking.turns else {})
        timing.update({"nodes": interval.nodes} if interval.nodes else {})
        stopped = {agent: one.stopped for agent, one in self.agents.items() if one.stopped is not None}
        return {
            "interval": interval.number,
            "steps": interval.steps,
            **({"stopped": stopped} if stopped else {}),
            "agents": {
                agent: {"return": one.mean_return, "episodes": one.episodes, **_finite(one.metrics)}
                for agent, one in self.agents.items()
            },
            "timing": {
                **timing,
                "shares": {phase: round(share, 4) for phase, share in self.shares.items()},
                **({"overlap": self.overlap} if self.overlap else {}),
            },
        }

    def _overlaps(self, now: Overlap) -> None:
        """Take in how an interval overlapped with learning."""
        before = self.overlap
        self._learned += now.learning_seconds
        self._lags += now.lag
        total = max(math.fsum(self._spent.values()), 1e-9)
        self.overlap = {
            "lag": now.lag,
            "mean_lag": round(self._lags / self.intervals, 3),
            "most_lag": max(now.lag, before.get("most_lag", 0)),
            "replay_ratio": round(now.replayed, 4),
            "collecting_waits": round(self._spent.get(AWAITING, 0.0) / total, 4),
            "learning_waits": round(max(0.0, 1.0 - self._learned / total), 4),
        }

    @property
    def score(self) -> float | None:
        """How good agents are: by the last evaluation, or else by their mean return; `None` as long as nobody knows."""
        if self.evaluations:
            return float(self.evaluations[-1]["return"])
        known = [one.mean_return for one in self.agents.values() if one.mean_return is not None]
        return math.fsum(known) / len(known) if known else None

    def state(self) -> dict[str, Any]:
        """Return all that is known, as plain values."""
        agents = {name: {**vars(one), "recent": list(one.recent)} for name, one in self.agents.items()}
        return {
            "steps": self.steps,
            "intervals": self.intervals,
            "agents": agents,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "overlap": [self._lags, self.overlap],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
        self.steps, self.intervals, self._before = state["steps"], state["intervals"], state["seconds"]
        self._lags, self.overlap = state.get("overlap", [0, {}])
        for name, one in state["agents"].items():
            recent, metrics = deque(one["recent"], RECENT), dict(one["metrics"])
            self.agents[name] = AgentProgress(one["episodes"], recent, metrics, one.get("stopped"))
        self.evaluations[:] = state["evaluations"]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the time that the body takes apart from that of the run."""
        began = self._clock()
        try:
            yield
        finally:
            self._apart += self._clock() - began

    @property
    def seconds(self) -> float:
        """How long it has been running, without evaluations."""
        return self._clock() - self._began - self._apart

    @property
    def steps_per_second(self) -> float:
        """Environment steps a second, over the whole run so far."""
        return self.steps / max(self.seconds, 1e-9)

    @property
    def shares(self) -> dict[str, float]:
        """What share of the time was spent on each phase."""
        total = max(math.fsum(self._spent.values()), 1e-9)
        return {phase: seconds / total for phase, seconds in self._spent.items()}

    @property
    def seconds_left(self) -> float | None:
        """About how long it will still take; `None` as long as nobody can know."""
        return max(0, self.total - self.steps) / self.steps_per_second if self.steps else None


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return figures as JSON holds them: what is not finite is null."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
