"""Supervisor: THE copy of starting workers, numbered requests, limits of time, deaths, hangs and output.

It knows nothing of what its workers do. What becomes of requests whose worker is lost is up to a `Recovery`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from stretto import trace
from stretto.budget import NativeThreads
from stretto.errors import StrettoError, WorkerDied, WorldHung, resources
from stretto.workers.arena import Arena
from stretto.workers.base import Backend, Factory, Output, Worker
from stretto.workers.control import SLEEPS_AT_ONCE, Bell
from stretto.workers.inline import InlineWorker
from stretto.workers.lockstep import UNSETTLED, signal_idle
from stretto.workers.output import deliver_all
from stretto.workers.requests import (
    Issue,
    Recovery,
    Request,
    Seat,
    TellWhoAsked,
    answered_enough,
    answers_to,
    count_finished,
    not_again,
    sender,
    signaller,
)
from stretto.workers.waiting import Waiter

BUSY_SECONDS = 1.0
"""How long a worker that is at something when it shall be closed (after Ctrl-C, after a failure) may take to end it."""

EXIT_SECONDS = 1.0
"""How long a worker that has closed its service may take to be gone."""


class Supervisor:
    """Owns workers, the bell that wakes their caller, and the arena that holds what they share.

    A worker hangs when it shows no sign of life for longer than the limit of what it was asked. Where workers and the caller
    have a core each, or the caller is one of them, all look for what comes next for `spin_seconds` before they sleep. Else
    the caller needs their cores while they wait. Workers compute with `native_threads`, as does the caller in an inline seat.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        recovery: Recovery | None = None,
        spin_seconds: float = 0.0,
        spins: bool = True,
        native_threads: int = 1,
        start_seconds: float | None = 120.0,
    ) -> None:
        self.backend, self.recovery = backend, recovery or TellWhoAsked()
        self.seats: list[Seat] = []
        self._spin_seconds = spin_seconds if backend.shares_memory else 0.0
        self._native_threads, self._start_seconds = native_threads, start_seconds
        with resources("a group of workers"):
            self._bell = Bell.create()
            self.arena = Arena.create(shared=backend.pickles and backend.shares_memory)
        self._clock, self._spins = backend.clock, spins
        self._waiter = Waiter(self._bell, self._spin_seconds, self._clock)
        self._native = NativeThreads(native_threads)
        self._outputs: list[Output] = []  # those to be shown next
        self._owner = os.getpid()
        self._traced = False  # the workers were told to trace, and not yet to stop
        self._letting_go = self._closed = False

    @property
    def spins(self) -> bool:
        """Whether the caller has a core to look with before it sleeps."""
        return self._spins or any(seat.inline for seat in self.seats)

    # ---- seats ----

    def add_seat(self, factory: Factory, *, inline: bool | None = None, capacity: int = 64) -> Seat:
        """Make a place for a worker that serves what `factory` makes, with room for so many requests at once.

        If it is `inline` the caller does the work, when it waits.
        """
        seat = Seat(len(self.seats), factory, self.backend.start is None if inline is None else inline, capacity)
        self.seats.append(seat)
        return seat

    def start(self, seat: Seat) -> None:
        """Start a worker in a seat that has none."""
        if seat.inline:
            worker: Worker
            worker = inline = InlineWorker(seat.index, seat.capacity, self.arena, seat.factory, self._native)
            inline.watch(seat.present_limit, self.recovery.remedy)
        else:
            assert self.backend.start is not None
            where = seat.index, seat.capacity, self.arena, self._bell, seat.factory
            worker = self.backend.start(*where, spin_seconds=self._spin_seconds, native_threads=self._native_threads)
            self._waiter.watch(worker)
        seat.take(worker, self._clock.now())
        for other in self.remote:
            other.words[SLEEPS_AT_ONCE] = not self.spins
        self.recovery.started(seat)
        # The worker's constructor has sent `Start`, which is its request number 1.
        seat.requests.appendleft(Request(seat, not_again, "building", self._start_seconds, number=1, setup=True))

    @property
    def remote(self) -> list[Worker]:
        """The workers that are not the caller."""
        return [seat.worker for seat in self.seats if seat.worker is not None and not seat.inline]

    @property
    def pids(self) -> list[int]:
        """The processes, other than the caller's, that workers run in now."""
        return [seat.worker.pid for seat in self.seats if seat.worker is not None and seat.worker.pid is not None]

    # ---- asking ----

    def ask(
        self,
        seat: Seat,
        issue: Issue,
        doing: str,
        limit_seconds: float | None = None,
        on_value: Callable[[Any], None] | None = None,
        *,
        fresh: bool = True,
    ) -> Request:
        """Make a request of a seat's worker; `wait` and `settle` wait for it.

        `fresh=False` is for what only the worker understands that was there before: if it has died, that is the answer.
        """
        request = Request(seat, issue, doing, limit_seconds, on_value)
        if seat.worker is not None and not seat.requests and not seat.worker.alive():
            self._lose(seat)
        if seat.worker is None and fresh:
            self.recovery.revive(self, seat)
        if seat.worker is None:
            died = WorkerDied(f"worker {seat.index} died before it was asked", self.recovery.place(seat, doing))
            request.fail(seat.error or died, lost=seat.error is None)
            return request
        self.issue(request)
        return request

    def issue(self, request: Request) -> None:
        """Make a request of the worker that its seat has now."""
        seat = request.seat
        worker = seat.worker
        assert worker is not None
        progress = worker.progress
        if not seat.requests:
            seat.since, seat.seen = self._clock.now(), progress
        worker.trace(trace.active is not None)
        request.first_beat = progress[2]
        request.number = request.issue(worker)
        seat.requests.append(request)

    def tell(self, message_for: Callable[[Seat], object], doing: str, limit_seconds: float | None) -> list[Any]:
        """Send every seat its message (`None`: nothing), wait for all, and return their answers in order."""
        messages = ((seat, message_for(seat)) for seat in self.seats)
        requests = [self.ask(seat, sender(one), doing, limit_seconds) for seat, one in messages if one is not None]
        return self.settle(requests)

    def signal_all(self, code: int, doing: str, limit_seconds: float | None) -> list[Any] | None:
        """Let every worker do what a signal says; return their answers in order, `None` if there are none."""
        seats = self.seats
        if len(seats) == 1 and isinstance(seats[0].worker, InlineWorker) and not seats[0].requests:
            value = seats[0].worker.do(seats[0].worker.service.signal, code)
            return None if value is None else [value]
        workers = [seat.worker for seat in seats if seat.worker is not None and not seat.requests]
        if len(workers) < len(seats) or trace.active is not None or self._traced:
            self._traced = trace.active is not None
            return self.settle([self.ask(seat, signaller(code), doing, limit_seconds) for seat in seats])
        answers = signal_idle(seats, workers, code, self._waiter.bet)
        if answers is UNSETTLED:
            return self.settle([self._record(seat, signaller(code), doing, limit_seconds) for seat in seats])
        return answers

    def _record(self, seat: Seat, issue: Issue, doing: str, limit_seconds: float | None) -> Request:
        """Make the record of the last request of a seat's worker, which was made without one."""
        assert seat.worker is not None
        request = Request(seat, issue, doing, limit_seconds, number=seat.worker.made)
        seat.since, seat.seen = self._clock.now(), seat.worker.progress
        seat.requests.append(request)
        return request

    # ---- waiting ----

    def settle(self, requests: Sequence[Request]) -> list[Any]:
        """Wait until all requests are answered; return the answers, or raise the first failure in their order."""
        self.wait(requests)
        return answers_to(requests)

    def wait(self, requests: Sequence[Request], ready: int | None = None, seconds: float | None = None) -> None:
        """Wait until `ready` of the requests (default: all) are over, at most for `seconds`; see to workers that are lost."""
        wanted = len(requests) if ready is None else ready
        until = math.inf if seconds is None else self._clock.now() + seconds
        self._work_inline(requests, wanted)
        while True:
            for seat in self.seats:
                if seat.requests:
                    self._advance(seat)
            if count_finished(requests) >= wanted or self._clock.now() >= until:
                break
            self._wait(requests, wanted, until)
        self._waiter.end()
        if self._outputs:
            self._show_outputs()

    def _work_inline(self, requests: Sequence[Request], wanted: int) -> None:
        for seat in self.seats:
            if seat.inline and seat.requests and isinstance(seat.worker, InlineWorker):
                worker = seat.worker
                if wanted == len(requests):
                    worker.work()
                while count_finished(requests) < wanted and seat.worker is worker and worker.work_once():
                    self._advance(seat)

    def _wait(self, requests: Sequence[Request], wanted: int, until: float) -> None:
        ready = answered_enough(requests, wanted)
        if self.spins and self._waiter.spin(ready):
            return
        seconds_left = min([until, *[seat.ends() for seat in self.seats]]) - self._clock.now()
        for worker in self._waiter.sleep(self.remote, ready, seconds_left):
            seat = self.seats[worker.index]
            if worker.exchange():
                seat.since = self._clock.now()
            self._advance(seat)
            if not worker.alive() and seat.worker is worker:
                self._lose(seat)
        now = self._clock.now()
        for seat in self.seats:
            if seat.hangs(now):
                self._lose(seat, hung_after=seat.requests[0].limit_seconds or 0.0)
                if not self.backend.killable:
                    for other in self.seats:  # they may have waited for this one
                        other.since = self._clock.now()

    def _advance(self, seat: Seat) -> None:
        """Take in what a seat's worker has answered."""
        worker = seat.worker
        if worker is None:
            return
        done = worker.done  # before the mail: what belongs to these answers is there
        if worker.has_mail:
            seat.take_mail(worker)
        requests = seat.requests
        while requests and requests[0].number <= done:
            request = requests.popleft()
            seat.since = self._clock.now()
            seat.finish(request)
            if request.setup and request.error is not None:
                self.give_up(seat, request.error)
        if seat.outputs:
            self.release_outputs(seat, done)

    def release_outputs(self, seat: Seat, done: int | None = None) -> None:
        """Let what was put out during requests up to `done` (`None`: all) be shown; the rest may be done again."""
        self._outputs += [output for output in seat.outputs if done is None or output.number <= done]
        seat.outputs = [output for output in seat.outputs if done is not None and output.number > done]

    def _show_outputs(self) -> None:
        outputs, self._outputs = self._outputs, []
        deliver_all(outputs)

    # ---- losing ----

    def _lose(self, seat: Seat, hung_after: float | None = None) -> None:
        """See to a worker that died or hangs."""
        try:
            if not self._letting_go:
                self.recovery.lost(self, seat, hung_after)
                return
            # Nobody needs its answers: only one that hangs while it closes is told of, and asking for a stack takes long.
            closing = bool(seat.requests) and seat.requests[0].issue is Worker.stop
            error = self.end(seat, hung_after, wants_stack=closing)
            if seat.worker is not None:
                self.give_up(seat, error if closing and hung_after is not None else None)
        except BaseException as error:
            place = self.recovery.place(seat, "being replaced")
            self.give_up(seat, WorkerDied(f"the replacement of worker {seat.index} was cut short by {error!r}", place))
            raise

    def end(self, seat: Seat, hung_after: float | None, *, wants_stack: bool = True) -> StrettoError | None:
        """End a worker, take in what it had still said, and return what to tell; `None` if that was that it cannot start."""
        worker = seat.worker
        assert worker is not None
        place = self.recovery.place(seat, seat.requests[0].doing if seat.requests else "idle")
        stack = worker.stack() if hung_after is not None and wants_stack else ""
        ended = worker.last_words()
        self._advance(seat)
        if seat.worker is None:
            return None
        if hung_after is not None:
            shown = stack.rstrip() or "(unknown)"
            return WorldHung(f"no answer for {hung_after:g} s {place}; its Python stack was:\n{shown}", place, stack)
        often = f"{seat.restarts + 1} times in a row, the last time " if seat.restarts else ""
        return WorkerDied(f"worker {seat.index} died {often}{place}: {ended}", place, seat.restarts, ended)

    def give_up(self, seat: Seat, error: BaseException | None, *, lost: bool = False) -> None:
        """Let a seat be without a worker: nothing that was asked of it will be answered.

        Later requests get the error too; but if the worker is only `lost`, they get a new one.
        """
        for request in seat.requests:
            request.fail(error, lost=lost)
        if lost and seat.requests:
            seat.requests[0].outputs, seat.outputs = seat.outputs, []
        seat.requests.clear()
        self.release_outputs(seat)
        if error is not None and not isinstance(error, StrettoError):
            place = self.recovery.place(seat, "starting anew")
            error = WorkerDied(f"worker {seat.index} could not be started anew: {error!r}", place)
        seat.error = None if lost else error
        self.discard(seat)

    def discard(self, seat: Seat) -> None:
        """End a seat's worker at once; what it was asked is left as it is."""
        if seat.worker is not None:
            self._waiter.forget(seat.worker)
            seat.worker.kill()
            seat.worker = None

    # ---- ending ----

    @contextmanager
    def letting_go(self) -> Iterator[None]:
        """While the body runs, replace nobody who is lost."""
        self._letting_go = True
        try:
            yield
        finally:
            self._letting_go = False

    def let_go(self) -> None:
        """Wait for all that is under way after a failure or an interruption; who is lost meanwhile has no worker then."""
        self._give_up_the_dead()
        with self.letting_go():
            self.wait([request for seat in self.seats for request in seat.requests])

    def _give_up_the_dead(self) -> None:
        """Let seats be without a worker if it has died; of the others, record all that is under way."""
        for seat in self.seats:
            worker = seat.worker
            if worker is None or not worker.alive():
                self.give_up(seat, None)
            elif worker.done < worker.made and not seat.requests:  # `signal_all` was interrupted
                self._record(seat, not_again, "stepping", seat.usual_limit)

    def close(self, limit_seconds: float | None = 1.0) -> BaseException | None:
        """End all workers, each within the limit, and give everything back; may be called twice, and by a finalizer.

        Returns what the first service raised that failed to close, or `WorldHung`; all others are closed by then.
        """
        if self._closed or self._owner != os.getpid():
            return None  # a process that was forked off owns none of this
        self._closed = True
        try:
            return self._stop_all(limit_seconds)
        finally:
            for seat in self.seats:
                self.discard(seat)
                seat.requests.clear()
                seat.complete = None  # and with it shared memory
            self._bell.close()
            self.arena.close()
            self._show_outputs()

    def _stop_all(self, limit_seconds: float | None) -> BaseException | None:
        """Let all workers close their services. One that dies meanwhile has nothing left to lose."""
        with self.letting_go():
            for seat in self.seats:
                if isinstance(seat.worker, InlineWorker):
                    seat.worker.forget_requests()
            self._give_up_the_dead()
            now = self._clock.now()
            for request in [request for seat in self.seats for request in seat.requests]:
                request.until, request.seat.since = now + BUSY_SECONDS, now
            live = [seat for seat in self.seats if seat.worker is not None]
            stops = [self.ask(seat, Worker.stop, "closing", limit_seconds) for seat in live]
            try:
                self.wait(stops)
            finally:
                for seat in live:
                    if seat.worker is not None and not seat.requests:
                        seat.worker.close(EXIT_SECONDS)
                        seat.take_mail(seat.worker)
                        self.release_outputs(seat)
        return next((stop.error for stop in stops if stop.error is not None), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
