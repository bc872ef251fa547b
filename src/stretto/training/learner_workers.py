"""LearnerWorkers: the workers that compute learners, and what they share with the caller; who is lost learns again."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from stretto import trace
from stretto.budget import CpuBudget
from stretto.core import AgentId
from stretto.errors import FewerWorkers, ResourceError, user_stacklevel
from stretto.spaces import Array
from stretto.storage.block import Piece
from stretto.storage.copies import CopiesLayout, StateCopies
from stretto.storage.of_layout import AnyBuffer, buffer_of
from stretto.training.learner_service import (
    Learn,
    Learned,
    LearnerPlace,
    LearnerService,
    LearnerStates,
    News,
    task_of,
)
from stretto.training.learners.base import Learner
from stretto.training.learners.failures import LearnerFailure
from stretto.workers.backends import PROCESS
from stretto.workers.base import Backend, Worker
from stretto.workers.control import DONE
from stretto.workers.launcher import launcher
from stretto.workers.requests import Request, Seat, sender
from stretto.workers.retries import answered
from stretto.workers.supervisor import Supervisor

LONGEST_UPDATE_SECONDS = 1.0
"""How long a thread may still compute that is to end: it notices between two operations."""

OnFailure = Literal["stop", "freeze"]


@dataclass(frozen=True)
class Workplace:
    """Where learners compute: in how many workers, each with how many native threads.

    A learner that takes longer than `limit_seconds` for an interval hangs. `on_failure` says what follows if one raises: the
    run stops, or its agents act on with what they have learned, and learn no more. While others have leased more cores of
    the `budget` than when this began, there are as many fewer workers, but one at least. One that was lost is replaced if
    there is `room` for another.
    """

    backend: Backend
    workers: int = 1
    native_threads: int = 1
    limit_seconds: float | None = None
    on_failure: OnFailure = "stop"
    budget: CpuBudget | None = None
    room: Callable[[], bool] = lambda: True

    @property
    def is_far(self) -> bool:
        """Whether workers see none of the caller's memory."""
        return self.backend.pickles and not self.backend.shares_memory


class LearnerWorkers:
    """Computes learners, which `build` makes by number; those of the caller act.

    Those that learn are the caller's, or others: in other processes, where agents collect so many intervals `ahead` while
    they learn, and where a failure must not touch those that act. Of these, the states after the last two intervals lie in
    memory of the caller's: a worker that died begins its interval again from there.
    """

    def __init__(
        self, build: Callable[[int], Learner], learners: Sequence[Learner], workplace: Workplace, *, ahead: int
    ) -> None:
        self._learners, self._place, overlaps = learners, workplace, ahead > 0
        backend, workers = workplace.backend, min(workplace.workers, len(learners))
        self._unsent: list[list[Piece]] = [[] for _ in learners]
        inline = [backend.start is None] * workers
        if workers > 1 and backend.caller_works and not overlaps:
            inline[0] = True
        if backend.name == PROCESS.name and not all(inline):
            _preload(learners)
        always = overlaps or workplace.on_failure == "freeze"
        apart = [always or (backend.pickles and not one) for one in inline]
        self._supervisor = Supervisor(backend, native_threads=workplace.native_threads)
        places = self._lay_out([apart[number % workers] for number in range(len(learners))], max(1, ahead))
        for one, own in zip(inline, apart, strict=True):
            make = build if own else learners.__getitem__
            self._supervisor.add_seat(partial(LearnerService, make, places), inline=one)
        self._holders: list[Worker | None] = [None] * len(learners)  # the workers that have the learners' states
        self._taken = 0 if workplace.budget is None else workplace.budget.taken  # by whoever steps worlds
        self._active = len(self._supervisor.seats)
        self._said = False  # that some worker cannot be had
        self._tasks: dict[int, Learn] = {}
        self._asked: dict[int, Request] = {}  # those that are not done
        if overlaps:
            self._start_early()

    def _start_early(self) -> None:
        """Let processes, which take seconds to import torch, do so while the first interval is collected."""
        with contextlib.suppress(ResourceError):  # whoever is asked first says so
            for seat in self._supervisor.seats:
                if not seat.inline:
                    self._supervisor.start(seat)

    def _lay_out(self, apart: Sequence[bool], ahead: int) -> dict[int, LearnerPlace]:
        """Give buffers their memory, and states to those that learn apart from the caller's; return where they lie."""
        places, end = {}, 0
        for number, learner in enumerate(self._learners):
            states, offset, layout = None, end, replace(learner.layout, ahead=ahead)
            end = -(-layout.ring.fields(offset)[1] // 64) * 64
            sent = apart[number] and self._place.is_far
            if apart[number] and not sent:
                states = CopiesLayout.of(learner.state(), end)
                end = states.fields[1]
            places[number] = LearnerPlace(layout, offset, states, sent)
        arena = self._supervisor.arena
        arena.allocate(end, "the buffers of all learners", "keep fewer steps, or smaller observations")
        self.buffers: list[AnyBuffer] = [
            buffer_of(place.layout, arena=arena, offset=place.offset) for place in places.values()
        ]
        self.states = {
            number: LearnerStates(
                self._learners[number], None if place.states is None else StateCopies.new(place.states, arena)
            )
            for number, place in places.items()
            if place.states is not None or place.sent
        }
        return places

    def extend(self, number: int, piece: Piece) -> None:
        """Write a piece into the buffer of a learner."""
        self.buffers[number].extend(piece)
        if self._place.is_far and number in self.states:
            self._unsent[number].append(piece)

    # ---- asking ----

    def begin(self, tasks: Iterable[Learn]) -> None:
        """Let learners do an interval each."""
        self._fit_budget()
        self._tasks = {task.number: task for task in tasks}
        self._asked = {number: self._ask(number) for number in self._tasks}

    @property
    def is_learning(self) -> bool:
        """Whether something was begun whose answer was not taken."""
        return bool(self._asked)

    @property
    def is_done(self) -> bool:
        """Whether all that was begun is answered; this looks at words alone, which far workers send."""
        workers = [(request, request.seat.worker) for request in self._asked.values()]
        if self._place.is_far:
            for _, worker in workers:
                if worker is not None:
                    worker.exchange()
        return all(worker is None or worker.words[DONE] >= request.number for request, worker in workers)

    def answers(self) -> Iterator[tuple[int, Learned]]:
        """Wait for what was begun; yield what each learner has learned. Who is lost does its interval again."""
        for number, request in answered(self._supervisor, self._asked, self._ask_again):
            learned = request.value if request.error is None else self._failed(number, request.error)
            if learned is None:
                continue
            del self._asked[number]
            self.buffers[number].drop(self._tasks[number].taken)
            if number in self.states and request.error is None:
                self.states[number].take(self._tasks[number].version, learned.state)
            yield number, replace(learned, failures=[*learned.failures, *self._tasks[number].frozen])

    def _fit_budget(self) -> None:
        """Use as many workers as there are cores for. Those that are not used end; others take over their learners."""
        seats, budget = self._supervisor.seats, self._place.budget
        more = 0 if budget is None else max(0, budget.taken - self._taken)
        self._active = max(1, len(seats) - more)
        for seat in seats[self._active :]:
            self._supervisor.discard(seat)

    def _seat(self, number: int) -> Seat:
        """Return who computes a learner now: any worker that is used, or the caller, if the learner is its own."""
        here = self._place.backend.pickles and number not in self.states
        seat = self._supervisor.seats[0 if here else number % self._active]
        if self._lacks_room(seat):
            others = [one for one in self._supervisor.seats[: self._active] if one.worker is not None]
            seat = others[number % len(others)] if others else seat
        return seat

    def _lacks_room(self, seat: Seat) -> bool:
        return seat.worker is None and not seat.inline and not self._place.room()

    def _ask(self, number: int) -> Request:
        seat = self._seat(number)
        try:
            if self._lacks_room(seat):
                raise ResourceError("no node has room for it")
            return self._ask_seat(seat, number)
        except ResourceError as error:
            if seat.inline or number not in self.states:
                raise
            self._compute_here(seat, error)
            return self._ask_seat(seat, number)

    def _compute_here(self, seat: Seat, error: ResourceError) -> None:
        """Let the caller do what a worker would that cannot be had; say so once, whoever else cannot be had later."""
        seat.inline = True
        if not self._said:
            self._said = True
            others = "" if len(self._supervisor.seats) == 1 else ", and of every other one that cannot be had either"
            said = f"the caller does the work of worker {seat.index} of the learners{others}: {error}"
            warnings.warn(FewerWorkers(said), stacklevel=user_stacklevel())

    def _ask_seat(self, seat: Seat, number: int) -> Request:
        task = self._tasks[number]
        # Another worker may have taken the place of the one that learned before, for a learner that shares it.
        held = number not in self.states or (seat.worker is not None and seat.worker is self._holders[number])
        begins = None if held else self.states[number].lend(task.version - 1)
        fresh = number not in self.states or not held
        news = self._news(number, held=held) if self._place.is_far else None
        if seat.inline:
            news = None  # it sees the caller's memory
        message, doing = replace(task, begins=begins, frozen=(), news=news), task_of(number, self._agents(number))
        request = self._supervisor.ask(seat, sender(message), doing, self._place.limit_seconds, fresh=fresh)
        self._holders[number] = seat.worker
        if trace.active is not None and seat.worker is not None and seat.worker.pid is not None:
            trace.active.names[seat.worker.pid] = f"learner {seat.index}"
        return request

    def _news(self, number: int, *, held: bool) -> News:
        """Return what a worker has to be sent that has seen all that was sent before, or nothing."""
        pieces, self._unsent[number] = self._unsent[number], []
        return News(None, tuple(pieces)) if held else News(self.buffers[number].replica())

    def _ask_again(self, number: int) -> None:
        """Let a learner do its interval anew, from the state before it."""
        self._holders[number] = None
        self._asked[number] = self._ask(number)

    def _agents(self, number: int) -> tuple[AgentId, ...]:
        return self._learners[number].policy.world.agents

    # ---- failing ----

    def _failed(self, number: int, error: BaseException) -> Learned | None:
        """Raise what a learner raised, or freeze its agents; return `None` if some of them learn again without the others."""
        if self._place.on_failure == "stop" or not isinstance(error, Exception):
            raise error
        task, agents = self._tasks[number], self._agents(number)
        named = getattr(getattr(error, "place", None), "agent", None)
        blamed = np.array([named in (None, agent) or named not in agents for agent in agents]) & task.learning
        text = "".join(traceback.format_exception(error))
        reason = f"it raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        frozen = [LearnerFailure(agent, 0, reason, {}, text) for agent in _those(agents, blamed)]
        self._tasks[number] = replace(task, learning=task.learning & ~blamed, frozen=(*task.frozen, *frozen))
        if self._tasks[number].learning.any():
            self._ask_again(number)
            return None
        self._holders[number] = None
        self.states[number].stay(task.version)
        return Learned([{} for _ in agents], [], None, 0.0)

    # ---- ending ----

    def forget(self) -> None:
        """Begin anew with the states of the caller's learners."""
        for states in self.states.values():
            states.forget()
        self._holders = [None] * len(self._learners)

    @property
    def nodes(self) -> Counter[str]:
        """How many agents learn on each node of a cluster now."""
        found = Counter[str]()
        for number, worker in enumerate(self._holders):
            if worker is not None and worker.node is not None:
                found[worker.node] += len(self._agents(number))
        return found

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


def _preload(learners: Sequence[Learner]) -> None:
    """Let the launcher import what learners need, so that no worker has to; users' own code is imported where it is used."""
    launcher().preload_torch()
    for module in {LearnerService.__module__, *(type(one).__module__ for one in learners)}:
        if module.startswith("stretto."):
            launcher().preload(module)


def _those(agents: Sequence[AgentId], which: Array) -> list[AgentId]:
    return [agent for agent, one in zip(agents, which.tolist(), strict=True) if one]
