"""LearnerSet: all learners of a run, who learns when, and what is saved of them; results are the same wherever they learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from stretto.collection.experience import Segment
from stretto.collection.pieces import piece_of
from stretto.core import AgentId
from stretto.errors import UsageError
from stretto.policies.questions import Weights
from stretto.storage.of_layout import AnyBuffer, AnyRange
from stretto.storage.segments import SegmentBuffer
from stretto.training.blocks import joined, parted
from stretto.training.learner_service import Learn
from stretto.training.learner_workers import LearnerWorkers, Workplace
from stretto.training.learners.base import Learner, Metrics
from stretto.training.learners.failures import LearnerFailure
from stretto.training.state_files import SavedFiles
from stretto.training.turns import LearningTurns

T = TypeVar("T")


@dataclass(frozen=True)
class Learning:
    """What came of learning from an interval. `failures` says who learns no more from now on, and why.

    `weights` are what policies, by their number, act by from now on, where learners do not share them with their policies.
    They are views, to be read soon. `seconds` is for how long the busiest learner has learned.
    """

    version: int
    metrics: dict[AgentId, Metrics]
    failures: list[LearnerFailure] = field(default_factory=list)
    weights: Weights = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class _Before:
    """What was so before the last interval was begun."""

    version: int
    turns: Mapping[AgentId, int]
    stopped: list[AgentId]


class LearnerSet:
    """All learners of a run and their buffers. The caller's `learners` act; `workplace` says where they learn.

    `build` makes a learner, given its number. Agents may collect so many intervals `ahead` while they learn. `turns` says who
    learns in an interval, once it is given all agents. `version` counts the intervals that were begun.

    Learners that follow each other may be parts of one block of the plan: then `count` says how many for each block. What is
    saved is by blocks of the plan, and fits whatever they are parted into elsewhere.
    """

    def __init__(
        self,
        build: Callable[[int], Learner],
        count: int | Sequence[int],
        workplace: Workplace,
        *,
        ahead: int = 0,
        turns: Callable[[Sequence[AgentId]], LearningTurns] = LearningTurns,
    ) -> None:
        self.parts = [1] * count if isinstance(count, int) else count
        self.learners = [build(number) for number in range(sum(self.parts))]
        self.ahead, self.version = ahead, 0
        self.workers = LearnerWorkers(build, self.learners, workplace, ahead=ahead)
        self._before: _Before | None = None
        self._updates: dict[AgentId, float] = {}
        self.turns = turns([agent for agents in self.agents for agent in agents])

    @property
    def buffers(self) -> list[AnyBuffer]:
        """The buffer of each learner."""
        return self.workers.buffers

    @property
    def agents(self) -> list[tuple[AgentId, ...]]:
        """The agents of each learner."""
        return [learner.policy.world.agents for learner in self.learners]

    @property
    def pids(self) -> list[int]:
        """The processes that it runs now."""
        return self.workers.pids

    # ---- learning ----

    def extend(self, segment: Segment) -> None:
        """Write a segment into the buffers."""
        for number, buffer in enumerate(self.buffers):
            self.workers.extend(number, piece_of(segment, buffer.block))

    def take(self) -> list[AnyRange]:
        """Hold what is in the buffers now, for learners to learn from."""
        return [buffer.take() for buffer in self.buffers]

    @property
    def is_learning(self) -> bool:
        """Whether something was begun that was not finished."""
        return self.workers.is_learning

    @property
    def is_done(self) -> bool:
        """Whether something was begun, and `finish` need not wait."""
        return self.workers.is_learning and self.workers.is_done

    def begin(self, progress: float, taken: Sequence[AnyRange] | None = None) -> None:
        """Let learners begin to learn from what was taken, or from what is in their buffers now; `finish` waits for them."""
        taken = self.take() if taken is None else taken
        self._before = _Before(self.version, self.turns.state(), sorted(self.turns.stopped))
        self.version += 1
        turn, stopped, tasks = self.turns.next(), self.turns.stopped, []
        for number, agents in enumerate(self.agents):
            if stopped.issuperset(agents):
                self.buffers[number].drop(taken[number])
                continue
            learning = np.array([agent in turn for agent in agents])
            tasks.append(Learn(number, self.version, taken[number], progress, learning))
        self._learned = [task.number for task in tasks]
        self.workers.begin(tasks)

    def finish(self) -> Learning:
        """Wait until what was begun is done. Agents that could not go on act on, and do not learn again."""
        metrics: dict[AgentId, Metrics] = {}
        failures: list[LearnerFailure] = []
        seconds = [0.0]
        for number, learned in self.workers.answers():
            seconds.append(learned.seconds)
            metrics.update(zip(self.agents[number], learned.metrics, strict=True))
            failures += learned.failures
        for agent in (agent for agents in self.agents for agent in agents):
            if agent in self.turns.stopped or not metrics.get(agent):
                metrics[agent] = {"updates": self._updates.get(agent, 0.0)}
            self._updates[agent] = metrics[agent].get("updates", 0.0)
        for failure in failures:
            self.turns.stop(failure.agent)
        ordered = {agent: metrics[agent] for agents in self.agents for agent in agents}
        return Learning(self.version, ordered, failures, self._weights(), max(seconds))

    def _weights(self) -> dict[int, Mapping[str, Any]]:
        """Return what policies act by from now on, of those learners that learned apart from them."""
        states = self.workers.states
        return {
            number: self.learners[number].acting(states[number].read(self.version))
            for number in self._learned
            if number in states
        }

    # ---- saving ----

    def settle(self) -> None:
        """Let the last interval that was learned count as done. Until then, `state` is what was before it was begun."""
        self._before = None

    def state(self) -> dict[str, Any]:
        """Return the states of all learners, and the buffers that they will learn from again; most arrays are views.

        Where an interval is `pending` it is still to be learned, from what was in the buffers when it was begun.
        """
        before = self._before
        now = before or _Before(self.version, self.turns.state(), sorted(self.turns.stopped))
        kept = self.workers.states
        states = [
            kept[number].read(now.version) if number in kept else learner.state()
            for number, learner in enumerate(self.learners)
        ]
        return {
            "agents": self._agents_by_block(),
            "version": now.version,
            "pending": before is not None,
            "turns": dict(now.turns),
            "stopped": now.stopped,
            "updates": dict(self._updates),
            "learners": [joined(some) for some in self._by_block(states)],
            "buffers": [_buffer_state(some, pending=before is not None) for some in self._by_block(self.buffers)],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned, once it is in files."""
        agents = self._agents_by_block()
        if state["agents"] != agents:
            raise UsageError(
                f"agents must be in the blocks that were saved, got {agents} in place of {state['agents']}; go on with "
                f"the same settings"
            )
        self.version = int(state.get("version", 0))
        self.turns.load_state(state["turns"])
        for agent in state.get("stopped", ()):
            self.turns.stop(agent)
        self._updates.update(state.get("updates", {}))
        blocks = zip(self._by_block(self.learners), self._by_block(self.buffers), strict=True)
        for (learners, buffers), saved, kept in zip(blocks, state["learners"], state["buffers"], strict=True):
            sizes = [len(learner.policy.world.agents) for learner in learners]
            for learner, mine in zip(learners, parted(saved, sizes), strict=True):
                learner.load_state(mine)
            if isinstance(kept, SavedFiles):
                buffers[0].restore(kept.files, kept.name)
            elif kept is not None:
                for buffer, mine in zip(buffers, parted(kept, sizes), strict=True):
                    assert isinstance(buffer, SegmentBuffer)
                    buffer.load_state(mine)
        self.workers.forget()

    def _agents_by_block(self) -> list[list[AgentId]]:
        return [[agent for agents in some for agent in agents] for some in self._by_block(self.agents)]

    def _by_block(self, values: Sequence[T]) -> list[Sequence[T]]:
        """Return what there is of each learner by block of the plan."""
        ends = list(accumulate(self.parts))
        return [values[end - count : end] for end, count in zip(ends, self.parts, strict=True)]

    def close(self) -> None:
        """End the workers; may be called twice."""
        self.workers.close()


def _buffer_state(parts: Sequence[AnyBuffer], *, pending: bool) -> Any:
    """Return what is in the buffers of a block, if somebody will look at it again."""
    if not isinstance(parts[0], SegmentBuffer):
        return parts[0]
    return joined([part.state() for part in parts if isinstance(part, SegmentBuffer)]) if pending else None
