"""The loop of a run: agents collect, and learn from what they collected, one after the other or at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import sub
from typing import Any

import numpy as np

from stretto.collection.collector import Collector, Trials, why_not_resumable
from stretto.collection.experience import Segment
from stretto.collection.pieces import piece_of
from stretto.collection.turn_stage import Turns
from stretto.collection.worlds import BlockWorlds
from stretto.core import SEQUENTIAL, AgentId
from stretto.policies.ahead import NOT_COUNTED, Counted
from stretto.policies.block_runner import BlockRunner
from stretto.run_trace import traced_call, traced_runner, traced_worlds
from stretto.training.learners.base import Metrics
from stretto.training.learners.failures import LearnerFailure
from stretto.training.phases import Phases
from stretto.training.sets import LearnerSet, Learning


@dataclass(frozen=True)
class Interval:
    """What one round of collecting and learning gave.

    `steps` are the environment steps since the run began. `returns` has, for each agent, the sums of rewards of the
    episodes that ended; `metrics` are those of its learner. `failures` says who learns no more from now on, and why.
    `seconds` says what the time of the collecting side was spent on, by phase, and `learning_seconds` for how long
    learners computed. `lag` is how many intervals of learning the agents that collected were behind whoever learns from it.
    `asking` counts how agents were asked in sequential turns.
    """

    number: int
    steps: int
    lag: int = 0
    returns: dict[AgentId, list[float]] = field(default_factory=dict)
    metrics: dict[AgentId, Metrics] = field(default_factory=dict)
    failures: list[LearnerFailure] = field(default_factory=list, compare=False)
    seconds: dict[str, float] = field(default_factory=dict, compare=False)
    learning_seconds: float = field(default=0.0, compare=False)
    asking: Counted = field(default=NOT_COUNTED, compare=False)


class Loop:
    """Collects `rows` rows of every environment, lets all learners learn from them, and so on until `total_steps`.

    What is learned from interval k is acted by from interval k + 1 on. If learners overlap with collecting, it is so from
    interval k + 2 on: k + 1 is collected meanwhile. A call of a policy has `act_rows` rows for each agent, by default one for
    each environment.
    """

    def __init__(  # noqa: PLR0913  all that a run is made of
        self,
        worlds: BlockWorlds,
        learners: LearnerSet,
        trials: Trials,
        rows: int,
        total_steps: int,
        *,
        act_rows: int | None = None,
        resumable: bool = False,
        turns: str = SEQUENTIAL,
    ) -> None:
        self._learners, self._total = learners, total_steps
        numbers = {agent: number for number, agents in enumerate(learners.agents) for agent in agents}
        followed = {agent: numbers[agent] for kind in worlds.kinds for agent in kind.agents}
        self._phases = Phases()
        policies = [one.policy for one in learners.learners]
        self._runner = BlockRunner(policies, act_rows or worlds.count, parts=learners.parts)
        runner = self._phases.of_runner(self._runner)
        seen = traced_worlds(self._phases.of_worlds(worlds))
        self._collector = Collector(seen, traced_runner(runner), followed, Turns(turns))
        self._finish = self._phases.timed("learning", traced_call(self._await, "learning"))
        self.why_not_resumable = why_not_resumable(worlds, runner)
        resumable = resumable and self.why_not_resumable is None
        self._segments = self._collector.segments(rows, trials, resumable=resumable)
        self._running = [np.zeros((worlds.count, len(kind.agents))) for kind in worlds.kinds]
        self.steps = self.intervals = 0

    def __iter__(self) -> Iterator[Interval]:
        if self.over and self._learners.is_learning:  # what was saved at the end of a run, and goes no further
            self._finish()
        while not self.over:
            self._phases.take()  # whoever looked at the last interval took some time
            lag, before = self._learners.version - self._runner.version, self._segments.counted
            segment = next(self._segments)
            asking = Counted(*map(sub, self._segments.counted, before))
            returns = self._count(segment)
            for buffer in self._learners.buffers:
                buffer.extend(piece_of(segment, buffer.block))
            learned = self._learn()
            metrics: dict[AgentId, Metrics] = {agent: {} for agents in self._learners.agents for agent in agents}
            for one in learned:
                metrics.update(one.metrics)
            yield Interval(
                self.intervals,
                self.steps,
                lag,
                returns,
                metrics,
                [failure for one in learned for failure in one.failures],
                self._phases.take(),
                sum(one.seconds for one in learned),
                asking,
            )

    @property
    def over(self) -> bool:
        """Whether all steps are done, or nobody is left to learn."""
        return self.steps >= self._total or self._learners.turns.over

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

    # ---- learning ----

    def _learn(self) -> list[Learning]:
        """Let learners learn from what was collected last; return what was learned meanwhile."""
        learners, learned = self._learners, []
        if learners.is_learning:
            learned.append(self._finish())
            learners.settle()
        if not learners.turns.over:
            learners.begin(self._progress)
            if not learners.overlaps or self.over:
                learned.append(self._finish())
        if not learners.overlaps:
            learners.settle()
        return learned

    def _await(self) -> Learning:
        """Wait for learners, and let policies have what they learned."""
        found = self._learners.finish()
        self._runner.publish(found.version, found.weights)
        return found

    @property
    def _progress(self) -> float:
        return min(1.0, self.steps / self._total)

    # ---- saving ----

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on after the last interval, if this is resumable. Some arrays are views."""
        return {
            "steps": self.steps,
            "intervals": self.intervals,
            "running": self._running,
            "collector": self._segments.state(),
            **self._learners.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has returned, before the first interval."""
        self._segments.restore(state["collector"])
        self._learners.load_state(state)
        self._runner.publish(self._learners.version, {})
        self.steps, self.intervals = int(state["steps"]), int(state["intervals"])
        for mine, saved in zip(self._running, state["running"], strict=True):
            mine[...] = saved
        if state.get("pending"):
            self._learners.begin(self._progress)

    def close(self) -> None:
        """Let go of worlds, policies and learners; may be called twice."""
        self._learners.close()
        self._collector.close()
