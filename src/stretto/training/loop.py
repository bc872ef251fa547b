"""The loop of a run: agents collect, and learn from what they collected, one after the other or at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import sub
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.collection.experience import Segment
from stretto.core import AgentId
from stretto.policies.ahead import NOT_COUNTED, Counted
from stretto.run_trace import traced_call
from stretto.training.learners.base import Metrics
from stretto.training.learners.failures import LearnerFailure
from stretto.training.orders import Free, InTurn, Order, Pipelined
from stretto.training.phases import AWAITING, Phases
from stretto.training.sets import LearnerSet, Learning

if TYPE_CHECKING:
    from stretto.training.sides import Side


@dataclass(frozen=True)
class Overlap:
    """How collecting and learning went together, where they overlap.

    `lag` is how many intervals that were collected before this one were not learned from yet when it began. `replayed` is
    how often each row that was collected has been learned from, on average. `learning_seconds` is for how long learners
    computed, of the `seconds` of this interval.
    """

    lag: int
    replayed: float
    learning_seconds: float = field(compare=False)
    seconds: float = field(compare=False)


@dataclass(frozen=True)
class Interval:
    """What one round of collecting and learning gave.

    `steps` are the environment steps since the run began. `returns` has, for each agent, the sums of rewards of the
    episodes that ended; `metrics` are those of its learner. `failures` says who learns no more from now on, and why.
    `seconds` says what the time of the collecting side was spent on, by phase. `asking` counts how agents were asked in
    sequential turns. `nodes` says how many environments and agents each node of a cluster has.
    """

    number: int
    steps: int
    returns: dict[AgentId, list[float]] = field(default_factory=dict)
    metrics: dict[AgentId, Metrics] = field(default_factory=dict)
    failures: list[LearnerFailure] = field(default_factory=list, compare=False)
    seconds: dict[str, float] = field(default_factory=dict, compare=False)
    overlap: Overlap | None = None
    asking: Counted = field(default=NOT_COUNTED, compare=False)
    nodes: dict[str, dict[str, int]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Pace:
    """How far a run goes: intervals of `rows` rows of every environment, until there were `total_steps`.

    Learners that may be behind are `free` to be so as it happens, or always. Each row is learned from so many times
    (`replays`) if each interval is learned from once. Of so many `episodes` of a trial only the last end is an end to
    learners.
    """

    rows: int
    total_steps: int
    free: bool = False
    replays: float = 1.0
    episodes: int = 1


class Loop:
    """Collects an interval, lets all learners learn from it, and so on, at a `pace`.

    What is learned from interval k is acted by from interval k + 1 on. Learners that may be one interval behind are
    pipelined: what they learn is acted by from interval k + 2 on, because k + 1 is collected meanwhile. If they are free, it
    is acted by as soon as it is there. A `side` collects.
    """

    def __init__(self, side: Side, learners: LearnerSet, pace: Pace) -> None:
        self._side, self._learners, self._pace = side, learners, pace
        self._phases = Phases("learning" if not learners.ahead else AWAITING)
        finish = self._phases.timed(self._phases.learning, traced_call(self._finish, self._phases.learning))
        self._order: Order
        if pace.free:
            self._order = Free(learners, finish, learners.ahead)
        else:
            self._order = Pipelined(learners, finish) if learners.ahead else InTurn(learners, finish)
        side.begin(learners, pace.rows, self._phases, self._order.poll if pace.free else None)
        self.why_not_resumable = side.why_not_resumable
        self._running = [np.zeros((side.count, len(kind.agents))) for kind in side.kinds]
        self._played = np.zeros(side.count, np.int64)  # the episodes of each slot that have ended
        self.steps = self.intervals = 0

    def __iter__(self) -> Iterator[Interval]:
        if self.over and self._learners.is_learning:  # what was saved at the end of a run, and goes no further
            self._finish()
        while not self.over:
            self._phases.take()  # whoever looked at the last interval took some time
            lag, before = self.intervals - self._side.version, self._side.counted
            segment = self._side.collect()
            asking = Counted(*map(sub, self._side.counted, before))
            returns = self._count(segment)
            if self._pace.episodes > 1:
                segment = self._without_inner_ends(segment)
            self._learners.extend(segment)
            learned = self._order.learn(self._progress, last=self.over)
            metrics: dict[AgentId, Metrics] = {agent: {} for agents in self._learners.agents for agent in agents}
            for one in learned:
                metrics.update(one.metrics)
            failures, seconds = [failure for one in learned for failure in one.failures], self._phases.take()
            overlap = self._overlap(lag, learned, sum(seconds.values())) if self._learners.ahead else None
            yield Interval(
                self.intervals, self.steps, returns, metrics, failures, seconds, overlap, asking, self._nodes
            )

    @property
    def _nodes(self) -> dict[str, dict[str, int]]:
        collect, learn = self._side.nodes, self._learners.workers.nodes
        return {
            node: {"environments": collect.get(node, 0), "agents": learn[node]} for node in sorted({*collect, *learn})
        }

    def _overlap(self, lag: int, learned: Sequence[Learning], seconds: float) -> Overlap:
        replayed = self._pace.replays * self._side.version / self.intervals
        return Overlap(lag, replayed, sum(one.seconds for one in learned), seconds)

    def _finish(self) -> Learning:
        """Wait for learners, and let policies have what they learned."""
        found = self._learners.finish()
        self._side.publish(found.version, found.weights)
        return found

    @property
    def _progress(self) -> float:
        return min(1.0, self.steps / self._pace.total_steps)

    @property
    def over(self) -> bool:
        """Whether all steps are done, or nobody is left to learn."""
        return self.steps >= self._pace.total_steps or self._learners.turns.over

    def _count(self, segment: Segment) -> dict[AgentId, list[float]]:
        """Count the steps of a segment; return the returns of the episodes that ended in it."""
        self.steps += int(segment.kinds[0].acted.any(2).sum())
        self.intervals += 1
        returns: dict[AgentId, list[float]] = {}
        for kind, running in zip(segment.kinds, self._running, strict=True):
            ended = kind.terminated | kind.truncated
            for row, rewards in enumerate(kind.rewards):
                np.add(running, rewards, out=running)
                for slot, agent in np.argwhere(ended[row]).tolist():
                    returns.setdefault(kind.agents[agent], []).append(float(running[slot, agent]))
                    running[slot, agent] = 0.0
        return returns

    def _without_inner_ends(self, segment: Segment) -> Segment:
        """Return a segment of trials in which nothing but the end of a trial is an end.

        The last observation of an episode has a row of its own, in which nobody acts: so decisions go on behind it.
        """
        (kind,) = segment.kinds
        ended = (kind.terminated | kind.truncated).any(2)
        before = self._played + np.cumsum(ended, 0) - ended
        self._played += ended.sum(0)
        last = (before % self._pace.episodes == self._pace.episodes - 1)[..., None]
        ends = {"terminated": kind.terminated & last, "truncated": kind.truncated & last}
        return replace(segment, kinds=(replace(kind, **ends),))

    # ---- saving ----

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on after the last interval, if this is resumable. Some arrays are views."""
        self._order.settle()
        return {
            "steps": self.steps,
            "intervals": self.intervals,
            "running": self._running,
            "played": self._played,
            "collector": self._side.state(),
            **self._learners.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has returned, before the first interval."""
        self._side.restore(state["collector"])
        self._learners.load_state(state)
        self._side.publish(self._learners.version, {})
        self.steps, self.intervals = int(state["steps"]), int(state["intervals"])
        for mine, saved in zip(self._running, state["running"], strict=True):
            mine[...] = saved
        self._played[:] = state["played"]
        if state.get("pending"):
            self._learners.begin(self._progress)

    def close(self) -> None:
        """Let go of worlds, policies and learners; may be called twice."""
        self._learners.close()
        self._side.close()
