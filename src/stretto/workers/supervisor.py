"""Supervisor: THE copy of starting workers, numbered requests, limits of time, deaths, hangs and output.

It knows nothing of what its workers do. What becomes of requests whose worker is lost is up to a `Recovery`.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

from stretto import trace
from stretto.budget import NativeThreads
from stretto.errors import Place, StrettoError, WorkerDied, WorldHung
from stretto.workers import watchdog
from stretto.workers.arena import Arena
from stretto.workers.base import Backend, Failure, Output, Reply, Spans, Worker
from stretto.workers.control import DONE, MAIL, NOTE, NOTE_BITS, PLAIN_STORES_PUBLISH, Bell
from stretto.workers.inline import InlineWorker
from stretto.workers.mail import Unreadable
from stretto.workers.output import deliver_all
from stretto.workers.requests import Factory, Issue, Request, Seat, count_finished, not_again, sender, signaller
from stretto.workers.resources import resources
from stretto.workers.waiting import LONGEST_SLEEP_SECONDS, Waiter, spin_limit

BUSY_SECONDS = 1.0
"""How long a worker that is at something when it shall be closed (after Ctrl-C, after a failure) may take to end it."""

EXIT_SECONDS = 1.0
"""How long a worker that has closed its service may take to be gone."""

CLOSING = "closing"


class Recovery(Protocol):
    """What becomes of a seat whose worker is lost; `remedy` is how code that hangs in the caller could be ended."""

    remedy: str

    def place(self, seat: Seat, doing: str) -> Place:
        """Say where a seat's worker is."""

    def started(self, seat: Seat) -> None:
        """Take note of a worker that was started just now."""

    def lost(self, supervisor: Supervisor, seat: Seat, hung_after: float | None) -> None:
        """Do something about a worker that died, or was silent for `hung_after` seconds."""

    def revive(self, supervisor: Supervisor, seat: Seat) -> None:
        """Start a worker in a seat that has none, unless its error is what requests are to get."""


class TellWhoAsked:
    """The simplest recovery: whoever asked a worker that is lost is told so, and the next request starts a new one."""

    remedy = "a worker process"

    def place(self, seat: Seat, doing: str) -> Place:
        return Place(doing, worker=seat.index)

    def started(self, seat: Seat) -> None:
        pass

    def lost(self, supervisor: Supervisor, seat: Seat, hung_after: float | None) -> None:
        error = supervisor.end(seat, hung_after)
        if error is not None:
            supervisor.give_up(seat, error, lost=True)
            seat.error = None

    def revive(self, supervisor: Supervisor, seat: Seat) -> None:
        supervisor.start(seat)


class Supervisor:
    """Owns workers, the bell that wakes their caller, and the arena that holds what they share.

    A worker hangs when it shows no sign of life for longer than the limit of what it was asked. Workers look for the next
    request for `spin_seconds` before they sleep, and so does the caller if it `spins`: where each has a core. Each worker
    computes with `native_threads`, and so does the caller in a seat that is inline.
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
        self.remote: list[Worker] = []
        self._spin_seconds = spin_seconds if backend.shares_memory else 0.0
        self._native_threads, self._start_seconds = native_threads, start_seconds
        with resources("a group of workers"):
            self._bell = Bell.create()
            self.arena = Arena.create(shared=backend.pickles and backend.shares_memory)
        self._clock = backend.clock
        self._waiter = Waiter(self._bell, self._spin_seconds if spins else 0.0, self._clock)
        self._native = NativeThreads(native_threads)
        self._outputs: list[Output] = []
        self._traced = False  # the workers were told to trace, and not yet to stop
        self._owner = os.getpid()
        self._letting_go = False
        self._closed = False

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
            seat.worker = inline = InlineWorker(seat.index, seat.capacity, self.arena, seat.factory)
            watchdog.watch(inline, lambda: _present_limit(seat), self.recovery.remedy)
        else:
            assert self.backend.start is not None
            seat.worker = self.backend.start(
                seat.index,
                seat.capacity,
                self.arena,
                self._bell,
                seat.factory,
                spin_seconds=self._spin_seconds,
                native_threads=self._native_threads,
            )
            self._waiter.watch(seat.worker)
        seat.values, seat.since, seat.seen, seat.error = {}, self._clock.now(), (), None
        self._note_remote()
        self.recovery.started(seat)
        # The worker's constructor has sent `Start`, which is its request number 1.
        seat.requests.appendleft(Request(seat, not_again, "building", self._start_seconds, number=1, setup=True))

    def restart(self, seat: Seat, setup: Sequence[Request], asked: Sequence[Request]) -> None:
        """Start a worker anew, make the requests that set it up, and ask again what was asked."""
        seat.requests.clear()
        try:
            self.start(seat)
        except StrettoError as error:
            seat.requests.extend(asked)
            self.give_up(seat, error)
            return
        for request in (*setup, *asked):
            self._issue(request)

    def _note_remote(self) -> None:
        self.remote = [seat.worker for seat in self.seats if seat.worker is not None and not seat.inline]

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
            place = self.recovery.place(seat, doing)
            gone = seat.error or WorkerDied(f"worker {seat.index} died before it was asked", place)
            request.finished, request.error, request.lost = True, gone, seat.error is None
            return request
        self._issue(request)
        return request

    def _issue(self, request: Request) -> None:
        seat = request.seat
        worker = seat.worker
        assert worker is not None
        if not seat.requests:
            seat.since = self._clock.now()
        worker.trace(trace.active is not None)
        request.first_beat = worker.progress[2]
        request.number = request.issue(worker)
        seat.requests.append(request)

    def tell(self, message_for: Callable[[Seat], object], doing: str, limit_seconds: float | None) -> list[Any]:
        """Send every seat its message (`None`: nothing), wait for all, and return their answers in order."""
        messages = ((seat, message_for(seat)) for seat in self.seats)
        requests = [self.ask(seat, sender(one), doing, limit_seconds) for seat, one in messages if one is not None]
        self.settle(requests)
        return [request.value for request in requests]

    def signal_all(self, code: int, doing: str, limit_seconds: float | None) -> list[Any] | None:
        """Let every worker do what a signal says; return what they have to tell, in order, if anything.

        Only the last seat may be inline.

        In a step of CartPole each line here runs with cold caches. The common case (everybody is idle, quick and does
        not fail) therefore does without the records that recovery needs, and the first thing out of the ordinary makes
        them: `settle` goes on from there.
        """
        seats = self.seats
        usual = trace.active is None and not self._traced
        for seat in seats:
            if seat.worker is None or seat.requests:
                usual = False
        if not usual:
            self._traced = trace.active is not None
            requests = [self.ask(seat, signaller(code), doing, limit_seconds) for seat in seats]
            self.settle(requests)
            return [request.value for request in requests]
        numbers = [seat.worker.signal(code) for seat in seats if seat.worker is not None]
        quick = PLAIN_STORES_PUBLISH
        inline = seats[-1].worker
        began = time.perf_counter()
        if seats[-1].inline and inline is not None:
            raised = self._native.cap()
            try:
                inline.work()
            finally:
                self._native.restore(raised)
        until = 0.0
        for worker, number in zip(self.remote, numbers, strict=False):
            words = worker.words
            while quick and words[DONE] < number:
                now = time.perf_counter()
                until = until or now + spin_limit(self._spin_seconds, now - began)
                quick = now < until
        if quick:
            for seat, number in zip(seats, numbers, strict=True):
                w = seat.worker
                if w is None or w.words[MAIL] != w.read or w.words[NOTE] >> NOTE_BITS == number:
                    break
            else:
                return None
            values = self._values(numbers)
            if values is not None:
                return values
        return self._record_and_settle(code, numbers, doing, limit_seconds)

    def _values(self, numbers: list[int]) -> list[Any] | None:
        """Return what all have answered; `None` if one of them failed or put something out."""
        for seat in self.seats:
            if seat.worker is None:
                return None
            self._take_mail(seat, seat.worker)
            if seat.outputs:
                return None
        for seat, number in zip(self.seats, numbers, strict=True):
            if isinstance(seat.values.get(number), Failure):
                return None
        return [seat.take_value(number) for seat, number in zip(self.seats, numbers, strict=True)]

    def _record_and_settle(self, code: int, numbers: list[int], doing: str, limit_seconds: float | None) -> list[Any]:
        """Make the records of requests that were made without, and settle them."""
        now = self._clock.now()
        requests = [
            Request(seat, signaller(code), doing, limit_seconds, number=number)
            for seat, number in zip(self.seats, numbers, strict=True)
        ]
        for request in requests:
            request.seat.since = now
            request.seat.requests.append(request)
        self.settle(requests)
        return [request.value for request in requests]

    # ---- waiting ----

    def settle(self, requests: Sequence[Request]) -> None:
        """Wait until all requests are answered.

        Raises:
            The first failure, in the order of the requests.
        """
        self.wait(requests)
        for request in requests:
            if request.error is not None:
                raise request.error

    def wait(self, requests: Sequence[Request], ready: int | None = None) -> None:
        """Wait until `ready` of the requests (default: all) are answered or failed; see to workers that are lost."""
        wanted = len(requests) if ready is None else ready
        self._work_inline(requests, wanted)
        while True:
            for seat in self.seats:
                if seat.requests:
                    self._advance(seat)
            if count_finished(requests) >= wanted:
                break
            self._wait(requests, wanted)
        if self._outputs:
            self._show_outputs()

    def _work_inline(self, requests: Sequence[Request], wanted: int) -> None:
        for seat in self.seats:
            if seat.inline and seat.requests and isinstance(seat.worker, InlineWorker):
                worker, raised = seat.worker, self._native.cap()
                try:
                    if wanted == len(requests):
                        worker.work()
                    while count_finished(requests) < wanted and seat.worker is worker and worker.work_once():
                        self._advance(seat)
                finally:
                    self._native.restore(raised)

    def _wait(self, requests: Sequence[Request], wanted: int) -> None:
        pending = [(r.seat.worker.words, r.number) for r in requests if not r.finished and r.seat.worker is not None]
        enough = wanted - (len(requests) - len(pending))

        def ready() -> bool:
            count = 0
            for words, number in pending:
                if words[DONE] >= number:
                    count += 1
            return count >= enough

        if self._waiter.spin(ready):
            return
        for worker in self._waiter.sleep(self.remote, ready, self._seconds_left()):
            seat = self.seats[worker.index]
            if worker.exchange():
                seat.since = self._clock.now()
            self._advance(seat)
            if not worker.alive() and seat.worker is worker:
                self._lose(seat)
        self._check_progress()

    def _seconds_left(self) -> float:
        now, least = self._clock.now(), LONGEST_SLEEP_SECONDS
        for seat in self.seats:
            if not seat.inline and seat.requests:
                ends = seat.ends(seat.requests[0])
                least = least if ends is None else min(least, ends - now)
        return max(least, 0.0)

    def _check_progress(self) -> None:
        now = self._clock.now()
        for seat in self.seats:
            worker = seat.worker
            if seat.inline or not seat.requests or worker is None:
                continue
            seen = worker.progress
            if seen != seat.seen:
                seat.seen, seat.since = seen, now
            request = seat.requests[0]
            ends = seat.ends(request)
            if ends is None or now <= ends:
                continue
            if request.until is None and worker.waits():
                seat.since = now
                continue
            self._lose(seat, hung_after=request.limit_seconds or 0.0)
            if not worker.killable:
                for other in self.seats:  # they may have waited for this one
                    other.since = self._clock.now()

    # ---- taking answers in ----

    def _advance(self, seat: Seat) -> None:
        """Take in what a seat's worker has answered."""
        worker = seat.worker
        if worker is None:
            return
        done = worker.done  # before the mail: what belongs to these answers is there
        if worker.has_mail:
            self._take_mail(seat, worker)
        requests = seat.requests
        while requests and requests[0].number <= done:
            request = requests.popleft()
            seat.since = self._clock.now()
            self._finish(request)
        if seat.outputs:
            self.release_outputs(seat, done)

    def _take_mail(self, seat: Seat, worker: Worker) -> None:
        for frame in worker.collect():
            match frame:
                case Reply(number, value):
                    seat.values[number] = value
                case Failure():
                    seat.values[frame.number] = frame
                case Unreadable(number, text):
                    seat.values[number] = _unreadable(seat, number, text)
                case Output():
                    # What a service says when it is built, which is request 1, it said already if it was before.
                    if frame.number > 1 or not seat.built:
                        seat.outputs.append(frame)
                case Spans(spans):
                    if trace.active is not None:
                        trace.active.spans.extend(spans)
                        trace.active.names.setdefault(spans[0][3], f"worker {seat.index}")
                case _:
                    raise AssertionError(f"no such frame: {frame!r}")

    def _finish(self, request: Request) -> None:
        seat = request.seat
        try:
            value = seat.take_value(request.number)
        except Exception:  # noqa: BLE001  whatever a foreign __setstate__ or a missing module raises
            value = _unreadable(seat, request.number, traceback.format_exc())
        request.finished = True
        if isinstance(value, Failure):
            request.error = value.error()
            if seat.worker is not None:
                request.beats = seat.worker.progress[2] - request.first_beat
            if request.setup:
                self.give_up(seat, request.error)
            return
        if request.setup:
            seat.built = True
        else:
            seat.restarts = 0
        request.value = value
        if request.on_value is not None:
            request.on_value(value)

    # ---- output ----

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
            if self._letting_go:
                self._let_go(seat, hung_after)
            else:
                self.recovery.lost(self, seat, hung_after)
        except BaseException as error:
            place = self.recovery.place(seat, "being replaced")
            self.give_up(seat, WorkerDied(f"the replacement of worker {seat.index} was cut short by {error!r}", place))
            raise

    def _let_go(self, seat: Seat, hung_after: float | None) -> None:
        """Give up a worker whose answers nobody needs; only one that hangs while it closes is told of."""
        closing = bool(seat.requests) and seat.requests[0].doing == CLOSING
        # Asking for a stack takes up to half a second, and nobody is told of a request that is let go.
        error = self.end(seat, hung_after, wants_stack=closing)
        if seat.worker is not None:
            self.give_up(seat, error if closing and hung_after is not None else None)

    def end(self, seat: Seat, hung_after: float | None, *, wants_stack: bool = True) -> StrettoError | None:
        """End a worker, take in what it had still said, and return what to tell; `None` if that was that it cannot start."""
        worker = seat.worker
        assert worker is not None
        doing = seat.requests[0].doing if seat.requests else "idle"
        place = self.recovery.place(seat, doing)
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
        """Let a seat be without a worker: nothing that was asked of it will be answered."""
        beat = 0 if seat.worker is None else seat.worker.progress[2]
        for request in seat.requests:
            request.finished, request.error, request.lost = True, error, lost
            request.beats = beat - request.first_beat
        if lost and seat.requests:
            seat.requests[0].outputs, seat.outputs = seat.outputs, []
        seat.requests.clear()
        self.release_outputs(seat)
        if error is not None and not isinstance(error, StrettoError):
            place = self.recovery.place(seat, "starting anew")
            error = WorkerDied(f"worker {seat.index} could not be started anew: {error!r}", place)
        seat.error = error
        self.discard(seat)

    def discard(self, seat: Seat) -> None:
        """End a seat's worker at once; what it was asked is left as it is."""
        if seat.worker is not None:
            self._waiter.forget(seat.worker)
            if isinstance(seat.worker, InlineWorker):
                watchdog.leave(seat.worker)
            seat.worker.kill()
            seat.worker = None
        self._note_remote()

    def abandon(self, seat: Seat) -> None:
        """End a worker at once; what it was asked is never answered."""
        seat.requests.clear()
        seat.outputs.clear()
        self.discard(seat)

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
        for seat in self.seats:
            if seat.worker is None or not seat.worker.alive():
                self.give_up(seat, None)
            else:
                self._record_what_is_under_way(seat, seat.worker)
        with self.letting_go():
            self.wait([request for seat in self.seats for request in seat.requests])

    def _record_what_is_under_way(self, seat: Seat, worker: Worker) -> None:
        """Make up for a `signal_all` that was interrupted before it had made its records."""
        if worker.done < worker.made and not seat.requests:
            seat.since = self._clock.now()
            seat.requests.append(Request(seat, not_again, "stepping", _present_limit(seat), number=worker.made))

    # ---- ending ----

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
            self._waiter.forget_all()
            self._bell.close()
            self.arena.close()
            self._show_outputs()

    def _stop_all(self, limit_seconds: float | None) -> BaseException | None:
        """Let all workers close their services. One that dies meanwhile has nothing left to lose."""
        stops = []
        with self.letting_go():
            for seat in self.seats:
                worker = seat.worker
                if worker is None or not worker.alive():
                    self.give_up(seat, None)
                    continue
                if isinstance(worker, InlineWorker):
                    worker.forget_requests()
                self._record_what_is_under_way(seat, worker)
                for request in seat.requests:
                    request.until = self._clock.now() + BUSY_SECONDS
                seat.since = self._clock.now()
                stops.append(self.ask(seat, Worker.stop, CLOSING, limit_seconds))
            try:
                self.wait(stops)
            finally:
                for seat in self.seats:
                    if seat.worker is not None and not seat.requests:
                        seat.worker.close(EXIT_SECONDS)
                        self._take_mail(seat, seat.worker)
                        self.release_outputs(seat)
        return next((stop.error for stop in stops if stop.error is not None), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _present_limit(seat: Seat) -> float | None:
    """Return the limit of what a seat does now; asked from another thread, so its requests may be gone meanwhile."""
    try:
        return seat.requests[0].limit_seconds
    except IndexError:
        return seat.usual_limit


def _unreadable(seat: Seat, number: int, text: str) -> Failure:
    return Failure(number, Place("reading an answer", worker=seat.index), text, None)
