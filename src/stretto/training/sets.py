"""LearnerSet: runs learners, one after the other, in threads or in processes of their own; results are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from stretto.core import AgentId
from stretto.errors import UsageError
from stretto.policies.questions import Weights
from stretto.storage.copies import CopiesLayout, StateCopies
from stretto.storage.of_layout import AnyBuffer, buffer_of
from stretto.storage.segments import SegmentBuffer
from stretto.training.blocks import joined, parted
from stretto.training.learner_service import Learn, Learned, LearnerPlace, LearnerService, LearnerStates
from stretto.training.learners.base import Learner, Metrics
from stretto.training.learners.failures import LearnerFailure
from stretto.training.state_files import SavedFiles
from stretto.training.turns import LearningTurns
from stretto.workers.base import Backend, Worker
from stretto.workers.output import deliver_all
from stretto.workers.requests import Request, Seat, sender
from stretto.workers.supervisor import Supervisor

T = TypeVar("T")

MOST_RESTARTS = 3
"""How often an interval is learned again whose worker died or hung."""


LONGEST_UPDATE_SECONDS = 1.0
"""How long a thread may still compute that is to end: it notices between two operations."""


@dataclass(frozen=True)
class Workplace:
    """Where learners compute: in how many workers, each with how many native threads.

    A learner that takes longer than `limit_seconds` for an interval hangs.
    """

    backend: Backend
    workers: int = 1
    native_threads: int = 1
    limit_seconds: float | None = None


@dataclass(frozen=True)
class Learning:
    """What came of learning from an interval. `failures` says who learns no more from now on, and why.

    `weights` are what policies, by their number, act by from now on, where learners do not share them with their policies.
    They are views, to be read soon. `seconds` is for how long the busiest worker has learned.
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
    """All learners of a run, their buffers, and the workers that compute them.

    The caller's learners act. Those that learn are the same objects, or others that `build` has built, given their numbers:
    in other processes, and wherever it `overlaps`, which means that agents act while they learn. Of these, the states after
    the last two intervals lie in memory of the caller's: a worker that died begins its interval again from there. `turns`
    says who learns in an interval, once it is given all agents.

    Learners that follow each other may be parts of one block of the plan: then `count` says how many for each block. What is
    saved is by blocks of the plan, and fits whatever they are parted into elsewhere.
    """

    def __init__(
        self,
        build: Callable[[int], Learner],
        count: int | Sequence[int],
        workplace: Workplace,
        *,
        overlaps: bool = False,
        turns: Callable[[Sequence[AgentId]], LearningTurns] = LearningTurns,
    ) -> None:
        self.parts = [1] * count if isinstance(count, int) else count
        self.learners = [build(number) for number in range(sum(self.parts))]
        self._limit, self.overlaps, self.version = workplace.limit_seconds, overlaps, 0
        backend, workers = workplace.backend, min(workplace.workers, len(self.learners))
        inline = [backend.start is None] * workers
        if workers > 1 and backend.caller_works and not overlaps:
            inline[0] = True
        apart = [overlaps or (backend.pickles and not one) for one in inline]
        self._supervisor = Supervisor(backend, native_threads=workplace.native_threads)
        places = self._lay_out([apart[number % workers] for number in range(len(self.learners))])
        for one, own in zip(inline, apart, strict=True):
            make = build if own else self.learners.__getitem__
            self._supervisor.add_seat(partial(LearnerService, make, places), inline=one)
        self._holders: list[Worker | None] = [None] * len(self.learners)  # the workers that have the learners' states
        self._tasks: dict[int, Learn] = {}  # those of the last interval
        self._asked: dict[int, Request] = {}  # those that are not done
        self._before: _Before | None = None
        self._updates: dict[AgentId, float] = {}
        self.turns = turns([agent for agents in self.agents for agent in agents])

    def _lay_out(self, apart: Sequence[bool]) -> dict[int, LearnerPlace]:
        """Give buffers their memory, and states to those that learn apart from the caller's; return where they lie."""
        places, end = {}, 0
        for number, learner in enumerate(self.learners):
            states, offset = None, end
            end = -(-learner.layout.ring.fields(offset)[1] // 64) * 64
            if apart[number]:
                states = CopiesLayout.of(learner.state(), end)
                end = states.fields[1]
            places[number] = LearnerPlace(learner.layout, offset, states)
        arena = self._supervisor.arena
        arena.allocate(end, "the buffers of all learners", "keep fewer steps, or smaller observations")
        self.buffers: list[AnyBuffer] = [
            buffer_of(place.layout, arena=arena, offset=place.offset) for place in places.values()
        ]
        self._states = {
            number: LearnerStates(self.learners[number], StateCopies.new(place.states, arena))
            for number, place in places.items()
            if place.states is not None
        }
        return places

    @property
    def agents(self) -> list[tuple[AgentId, ...]]:
        """The agents of each learner."""
        return [learner.policy.world.agents for learner in self.learners]

    # ---- learning ----

    def begin(self, progress: float) -> None:
        """Let learners begin to learn from what is in their buffers now; `finish` waits for them."""
        self._before = _Before(self.version, self.turns.state(), sorted(self.turns.stopped))
        self.version += 1
        turn, stopped = self.turns.next(), self.turns.stopped
        self._tasks = {}
        for number, agents in enumerate(self.agents):
            if not stopped.issuperset(agents):
                taken = self.buffers[number].take()
                learning = np.array([agent in turn for agent in agents])
                self._tasks[number] = Learn(number, self.version, taken, progress, learning, None)
        self._asked = {number: self._ask(number) for number in self._tasks}

    @property
    def is_learning(self) -> bool:
        """Whether something was begun that was not finished."""
        return bool(self._asked)

    def finish(self) -> Learning:
        """Wait until what was begun is done. Agents that could not go on act on, and do not learn again."""
        metrics: dict[AgentId, Metrics] = {}
        failures: list[LearnerFailure] = []
        seconds = [0.0] * len(self._supervisor.seats)
        for number, learned in self._answers():
            seconds[self._seat(number).index] += learned.seconds
            metrics.update(zip(self.agents[number], learned.metrics, strict=True))
            failures += learned.failures
        for agents in self.agents:
            for agent in agents:
                if agent in self.turns.stopped or agent not in metrics:
                    metrics[agent] = {"updates": self._updates.get(agent, 0.0)}
                self._updates[agent] = metrics[agent].get("updates", 0.0)
        for failure in failures:
            self.turns.stop(failure.agent)
        ordered = {agent: metrics[agent] for agents in self.agents for agent in agents}
        return Learning(self.version, ordered, failures, self._weights(), max(seconds))

    def _answers(self) -> Iterator[tuple[int, Learned]]:
        """Wait for what was asked; yield what each learner has learned. Who is lost does its interval again."""
        lost = dict.fromkeys(self._asked, 0)
        while self._asked:
            self._supervisor.wait(list(self._asked.values()), 1)
            for number, request in list(self._asked.items()):
                if not request.finished:
                    continue
                if request.lost and lost[number] < MOST_RESTARTS:
                    lost[number] += 1
                    self._holders[number] = None
                    self._asked[number] = self._ask(number)
                    continue
                deliver_all(request.outputs)
                del self._asked[number]
                self.buffers[number].drop(self._tasks[number].taken)
                if request.error is not None:
                    raise request.error
                learned: Learned = request.value
                if number in self._states:
                    self._states[number].take(self.version, learned.state)
                yield number, learned

    def _seat(self, number: int) -> Seat:
        return self._supervisor.seats[number % len(self._supervisor.seats)]

    def _ask(self, number: int) -> Request:
        """Let a learner do its interval."""
        seat, task = self._seat(number), self._tasks[number]
        # Another worker may have taken the place of the one that learned before, for a learner that shares it.
        held = number not in self._states or (seat.worker is not None and seat.worker is self._holders[number])
        begins = None if held else self._states[number].lend(task.version - 1)
        fresh = number not in self._states or not held
        doing = f"learning (block {number})"
        request = self._supervisor.ask(seat, sender(replace(task, begins=begins)), doing, self._limit, fresh=fresh)
        self._holders[number] = seat.worker
        return request

    def _weights(self) -> dict[int, Mapping[str, Any]]:
        """Return what policies act by from now on, of those learners that learned apart from them."""
        learned = [number for number in self._states if number in self._tasks]
        return {number: self.learners[number].acting(self._states[number].read(self.version)) for number in learned}

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
        states = [
            self._states[number].read(now.version) if number in self._states else learner.state()
            for number, learner in enumerate(self.learners)
        ]
        return {
            "agents": [[agent for agents in some for agent in agents] for some in self._by_block(self.agents)],
            "version": now.version,
            "pending": before is not None,
            "turns": dict(now.turns),
            "stopped": now.stopped,
            "updates": dict(self._updates),
            "learners": [joined(some) for some in self._by_block(states)],
            "buffers": [self._buffer_state(some, pending=before is not None) for some in self._by_block(self.buffers)],
        }

    def _buffer_state(self, parts: Sequence[AnyBuffer], *, pending: bool) -> Any:
        """Return what is in the buffers of a block, if somebody will look at it again."""
        if not isinstance(parts[0], SegmentBuffer):
            return parts[0]
        return joined([part.state() for part in parts if isinstance(part, SegmentBuffer)]) if pending else None

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned, once it is in files."""
        agents = [[agent for agents in some for agent in agents] for some in self._by_block(self.agents)]
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
        for some, saved in zip(self._by_block(self.learners), state["learners"], strict=True):
            for learner, mine in zip(some, parted(saved, self._sizes(some)), strict=True):
                learner.load_state(mine)
        for learners, buffers, saved in zip(
            self._by_block(self.learners), self._by_block(self.buffers), state["buffers"], strict=True
        ):
            if isinstance(saved, SavedFiles):
                buffers[0].restore(saved.files, saved.name)
            elif saved is not None:
                for buffer, mine in zip(buffers, parted(saved, self._sizes(learners)), strict=True):
                    assert isinstance(buffer, SegmentBuffer)
                    buffer.load_state(mine)
        for states in self._states.values():
            states.forget()
        self._holders = [None] * len(self.learners)

    def _sizes(self, learners: Sequence[Learner]) -> list[int]:
        return [len(learner.policy.world.agents) for learner in learners]

    def _by_block(self, values: Sequence[T]) -> list[Sequence[T]]:
        """Return what there is of each learner by block of the plan."""
        ends = list(accumulate(self.parts))
        return [values[end - count : end] for end, count in zip(ends, self.parts, strict=True)]

    @property
    def pids(self) -> list[int]:
        """The processes that it runs now."""
        return self._supervisor.pids

    def close(self) -> None:
        """End the workers; may be called twice. Whoever still learns is ended at once: nobody will see what it learns."""
        busy = [seat for seat in self._supervisor.seats if seat.requests and not seat.inline]
        workers = [seat.worker for seat in busy if seat.worker is not None]
        for seat in busy:
            self._supervisor.discard(seat)
            seat.requests.clear()
        for worker in workers:
            # torch aborts a process that ends while a thread computes.
            worker.wait_gone(LONGEST_UPDATE_SECONDS)
        self._supervisor.close()
