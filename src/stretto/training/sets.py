"""LearnerSet: runs learners, one after the other, in threads or in processes of their own; results are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from stretto.core import AgentId
from stretto.errors import Place, UsageError
from stretto.spaces import Array
from stretto.storage.memory import RingMemory
from stretto.storage.of_layout import AnyBuffer, AnyLayout, AnyRange, buffer_of, snapshot_of
from stretto.storage.segments import SegmentBuffer
from stretto.training.allocator import keep_freed_memory
from stretto.training.blocks import joined, parted
from stretto.training.learners.base import Learner, Metrics
from stretto.training.learners.failures import LearnerFailure
from stretto.training.log import LOGGER
from stretto.training.turns import LearningTurns
from stretto.workers.base import Backend, Port, Worker
from stretto.workers.output import deliver_all
from stretto.workers.requests import Request, sender
from stretto.workers.supervisor import Supervisor

__calls_user_code__ = True

T = TypeVar("T")

MOST_RESTARTS = 3
"""How often an interval is learned again whose worker died or hung."""


LONGEST_UPDATE_SECONDS = 1.0
"""How long a thread may still compute that is to end: it notices between two operations."""


@dataclass(frozen=True, slots=True)
class _Learn:
    """Asks for an interval of a learner, by its number. It begins with `state`, if that is given."""

    number: int
    taken: AnyRange
    progress: float
    learning: Array
    state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Learned:
    """What an interval gave; the learner's `state` after it where that has to cross processes."""

    metrics: list[Metrics]
    failures: list[LearnerFailure]
    state: Mapping[str, Any] | None


class _LearnerService:
    """Learns in a worker. Its learners are those of the caller, or, in another process, others that `build` has built."""

    def __init__(
        self, build: Callable[[int], Learner], memories: Mapping[int, tuple[AnyLayout, int]], port: Port
    ) -> None:
        self._build, self._places, self._port = build, memories, port
        keep_freed_memory()
        self._learners: dict[int, Learner] = {}
        self._memories: dict[int, RingMemory] = {}

    def handle(self, message: Any) -> object:
        if not isinstance(message, _Learn):
            return None
        number = message.number
        self._port.place = lambda: Place(f"learning (block {number})", worker=self._port.index)
        if number not in self._learners:
            layout, offset = self._places[number]
            self._learners[number] = self._build(number)
            self._memories[number] = RingMemory(layout.ring, self._port.arena, offset)
        learner = self._learners[number]
        if message.state is not None:
            learner.load_state(message.state)
        # Learners look for what is not finite themselves, and numpy need not tell of it.
        with snapshot_of(self._memories[number], message.taken) as seen, np.errstate(over="ignore", invalid="ignore"):
            metrics = list(learner.learn(seen, message.progress, message.learning))
        for agent, figures in zip(learner.policy.world.agents, metrics, strict=True):
            LOGGER.debug("learned: %s", figures, extra={"agent": agent})
        return _Learned(metrics, list(learner.failures), learner.state() if self._port.pickles else None)

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


class LearnerSet:
    """All learners of a run, their buffers, and the workers that compute them.

    The caller's learners act, and always have the state after the last interval: a worker that died begins its interval
    again from there. `build` makes a learner, given its number, as it was made for the caller, which is one of several
    processes that learn. `turns` says who learns in an interval, once it is given all agents.

    Learners that follow each other may be parts of one block of the plan: then `count` says how many for each block. What is
    saved is by blocks of the plan, and fits whatever they are parted into elsewhere.
    """

    def __init__(
        self,
        build: Callable[[int], Learner],
        count: int | Sequence[int],
        backend: Backend,
        workers: int = 1,
        *,
        native_threads: int = 1,
        limit_seconds: float | None = None,
        turns: Callable[[Sequence[AgentId]], LearningTurns] = LearningTurns,
    ) -> None:
        self.parts = [1] * count if isinstance(count, int) else count
        count = sum(self.parts)
        self.learners = [build(number) for number in range(count)]
        self._limit = limit_seconds
        self._supervisor = Supervisor(backend, native_threads=native_threads)
        places, end = {}, 0
        for number, learner in enumerate(self.learners):
            places[number] = learner.layout, end
            end = -(-learner.layout.ring.fields(end)[1] // 64) * 64
        self._supervisor.arena.allocate(end, "the buffers of all learners", "keep fewer steps, or smaller observations")
        arena = self._supervisor.arena
        self.buffers: list[AnyBuffer] = [buffer_of(layout, arena=arena, offset=at) for layout, at in places.values()]
        mine = self.learners.__getitem__
        workers = min(workers, count)
        for number in range(workers):
            inline = backend.start is None or (backend.caller_works and number == 0 and workers > 1)
            make = mine if inline or not backend.pickles else build
            self._supervisor.add_seat(partial(_LearnerService, make, places), inline=inline)
        self._holders: list[Worker | None] = [None] * count  # the workers that have the learners' states
        self._taken: dict[int, AnyRange] = {}
        self.failures: list[LearnerFailure] = []
        self.turns = turns([agent for agents in self.agents for agent in agents])

    @property
    def agents(self) -> list[tuple[AgentId, ...]]:
        """The agents of each learner."""
        return [learner.policy.world.agents for learner in self.learners]

    def learn(self, progress: float) -> dict[AgentId, Metrics]:
        """Let learners learn from what is in their buffers; return figures for each agent.

        `failures` says who could not: such an agent acts on, and does not learn again.
        """
        self.failures = []
        turn = self.turns.next()
        asked = {number: self._ask(number, progress, turn) for number in range(len(self.learners))}
        lost = dict.fromkeys(asked, 0)
        found: dict[AgentId, Metrics] = {}
        while asked:
            self._supervisor.wait(list(asked.values()), 1)
            for number, request in list(asked.items()):
                if not request.finished:
                    continue
                if request.lost and lost[number] < MOST_RESTARTS:
                    lost[number] += 1
                    self._holders[number] = None
                    self.buffers[number].drop(self._taken[number])
                    asked[number] = self._ask(number, progress, turn)
                    continue
                deliver_all(request.outputs)
                del asked[number]
                if request.error is not None:
                    raise request.error
                learned: _Learned = request.value
                if learned.state is not None:
                    self.learners[number].load_state(learned.state)
                found.update(zip(self.agents[number], learned.metrics, strict=True))
                self.failures += learned.failures
        for stopped in self.turns.stopped:
            found[stopped] = {"updates": found[stopped]["updates"]}
        for failure in self.failures:
            self.turns.stop(failure.agent)
        return {agent: found[agent] for agents in self.agents for agent in agents}

    def _ask(self, number: int, progress: float, turn: frozenset[AgentId]) -> Request:
        seat = self._supervisor.seats[number % len(self._supervisor.seats)]
        here = seat.inline or not self._supervisor.backend.pickles
        # Another worker may have taken the place of the one that learned before, for a learner that shares it.
        held = seat.worker is not None and seat.worker is self._holders[number]
        self._taken[number] = self.buffers[number].take()
        learning = np.array([agent in turn for agent in self.agents[number]])
        state = None if here or held else self.learners[number].state()
        message = _Learn(number, self._taken[number], progress, learning, state)
        doing = f"learning (block {number})"
        request = self._supervisor.ask(seat, sender(message), doing, self._limit, fresh=here or not held)
        self._holders[number] = seat.worker
        return request

    def state(self) -> dict[str, Any]:
        """Return the states of all learners, and the buffers that they will learn from again; most arrays are views."""
        return {
            "agents": [[agent for agents in some for agent in agents] for some in self._by_block(self.agents)],
            "turns": self.turns.state(),
            "stopped": sorted(self.turns.stopped),
            "learners": [joined([learner.state() for learner in some]) for some in self._by_block(self.learners)],
            "buffers": [
                None if isinstance(some[0], SegmentBuffer) else some[0] for some in self._by_block(self.buffers)
            ],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned, once it is in files."""
        agents = self.state()["agents"]
        if state["agents"] != agents:
            raise UsageError(
                f"agents must be in the blocks that were saved, got {agents} in place of {state['agents']}; go on with "
                f"the same settings"
            )
        self.turns.load_state(state["turns"])
        for agent in state.get("stopped", ()):
            self.turns.stop(agent)
        for some, saved in zip(self._by_block(self.learners), state["learners"], strict=True):
            for learner, mine in zip(some, parted(saved, [len(one.policy.world.agents) for one in some]), strict=True):
                learner.load_state(mine)
        for (buffer, *_), saved in zip(self._by_block(self.buffers), state["buffers"], strict=True):
            if saved is not None:
                buffer.restore(saved.files, saved.name)
        self._holders = [None] * len(self.learners)

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
