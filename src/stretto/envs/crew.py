"""Crew: the workers of one vector environment. Requests go out, answers come in, and who dies is replaced."""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto import trace
from stretto.budget import NativeThreads
from stretto.envs.backends import Backend
from stretto.envs.messages import Attach, Describe, Restore, Restored, SlotPlan, Step
from stretto.envs.service import GroupFactory
from stretto.errors import FewerWorkers, Place, ResetNeeded, StrettoError, WorkerDied, WorldHung, user_stacklevel
from stretto.workers import watchdog
from stretto.workers.arena import Arena
from stretto.workers.base import Failure, Output, Reply, Spans, Worker
from stretto.workers.control import BEAT, DONE, MAIL, PLAIN_STORES_PUBLISH, POSITION, TRACING, Bell
from stretto.workers.inline import InlineWorker
from stretto.workers.mail import Unreadable
from stretto.workers.output import deliver
from stretto.workers.resources import resources
from stretto.workers.waiting import LONGEST_SLEEP_SECONDS, Waiter

BUSY_SECONDS = 1.0
"""How long a worker that is at something when it shall be closed (after Ctrl-C, after a failure) may take to end it."""

EXIT_SECONDS = 1.0
"""How long a worker that has closed its worlds may take to be gone."""

_CLOSING = "closing"
Issue = Callable[[Worker], int]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a worker may be without a sign of progress, in seconds (`None`: for ever), and how often it may die."""

    start: float | None
    reset: float | None
    step: float | None
    on_crash: str
    max_restarts: int


@dataclass(slots=True)
class Request:
    """Something asked of a member; `issue` asks again if the worker has to be replaced."""

    member: Member
    issue: Issue
    doing: str
    timeout: float | None
    on_value: Callable[[Any], None] | None = None
    number: int = 0
    finished: bool = False
    internal: bool = False
    hung: bool = False
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Member:
    """A share of the slots, and the worker that has it now.

    `values` and `outputs` came by mail, and wait until their request counts as answered. Where there is no worker, the
    next request brings a new one (which restores the slots, unless `lost_because` has a reason); if there is an `error`,
    that is what requests get, and only `Crew.recover` brings a new worker.
    """

    index: int
    first: int
    count: int
    factory: GroupFactory
    worker: Worker | None = None
    inline: bool = False
    requests: deque[Request] = field(default_factory=deque)
    values: dict[int, Any] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    built: bool = False
    error: StrettoError | None = None
    lost_because: str | None = None
    restarts: int = 0
    seen: tuple[int, int, int] = (0, 0, 0)
    since: float = 0.0

    @property
    def slots(self) -> range:
        return range(self.first, self.first + self.count)


class Memory(Protocol):
    """What the crew has to know to replace a worker."""

    def plans(self, slots: Iterable[int], lost_because: str | None) -> list[SlotPlan]:
        """Say how to bring slots to where they were; not at all, but for the reason given, if there is one."""

    def restored(self, result: Restored) -> None:
        """Take note of how that went."""

    def restarted(self) -> None:
        """Take note of a worker that was replaced."""

    def place(self, slot: int, doing: str, worker: int) -> Place:
        """Say where a slot is."""


class Crew:
    """Owns the workers, the bell that wakes the caller, and the arena that holds their arrays."""

    def __init__(self, backend: Backend, limits: Limits, *, spin_seconds: float) -> None:
        self.backend = backend
        self.limits = limits
        self.memory: Memory | None = None
        self.ever_started: set[int] = set()
        self.members: list[Member] = []
        self.remote: list[Worker] = []
        self.spin_seconds = spin_seconds
        with resources("a vector environment"):
            self._bell = Bell.create()
            self.arena = Arena.create(shared=backend.crosses_processes)
        self._waiter = Waiter(self._bell, spin_seconds)
        self._native = NativeThreads()
        self._attach: Attach | None = None
        self._outputs: list[Output] = []
        self._owner = os.getpid()
        self._letting_go = False
        self._moved_out = False
        self._traced = False  # the workers were told to trace, and not yet to stop
        self._closed = False

    # ---- starting ----

    def start(self, factories: Sequence[GroupFactory], inline: int | None) -> list[Any]:
        """Start a worker for each factory (number `inline` in the caller) and return what they say of their worlds."""
        for index, factory in enumerate(factories):
            member = Member(index, factory.first, len(factory.makers), factory, inline=index == inline)
            self.members.append(member)
        for member in sorted(self.members, key=lambda m: m.inline):  # the others build while the caller does
            self._start_worker(member)
        return self.tell(lambda _: Describe(), "building", "start")

    def _start_worker(self, member: Member) -> None:
        capacity = 2 * member.count + 64
        if member.inline:
            member.worker = inline = InlineWorker(member.index, capacity, self.arena, member.factory)
            watchdog.watch(inline, lambda: _current_limit(member, self.limits.step))
        else:
            assert self.backend.start is not None
            member.worker = self.backend.start(
                member.index,
                capacity,
                self.arena,
                self._bell,
                member.factory,
                spin_seconds=self.spin_seconds,
            )
            self._waiter.watch(member.worker)
        self.ever_started.add(member.index)
        member.values, member.since, member.seen, member.error = {}, time.monotonic(), (0, 0, 0), None
        self.remote = [m.worker for m in self.members if m.worker is not None and not m.inline]
        # The worker's constructor has sent `Start`, which is its request number 1.
        request = Request(member, _not_again, "building", self.limits.start, number=1, internal=True)
        member.requests.appendleft(request)

    def attach(self, message: Attach, memory: Memory) -> None:
        """Tell all workers, also those that are started later, where the arrays are; `memory` can then restore them."""
        self._attach, self.memory = message, memory
        self.settle([self.ask(member, lambda w: w.send(message), "attaching", "start") for member in self.members])

    # ---- asking and waiting ----

    def ask(
        self,
        member: Member,
        issue: Issue,
        doing: str,
        limit: str,
        on_value: Callable[[Any], None] | None = None,
    ) -> Request:
        """Make a request of a member; `settle` waits for it."""
        request = Request(member, issue, doing, getattr(self.limits, limit), on_value)
        worker = member.worker or self._worker_anew(member)
        if worker is None:
            request.finished, request.error = True, member.error
            return request
        if not member.requests:
            member.since = time.monotonic()
        worker.words[TRACING] = trace.active is not None
        request.number = issue(worker)
        member.requests.append(request)
        return request

    def tell(self, message_for: Callable[[Member], object], doing: str, limit: str) -> list[Any]:
        """Send every member its message, wait for all, and return their answers in the order of the slots."""
        requests = []
        for member in self.members:
            message = message_for(member)
            if message is not None:
                requests.append(self.ask(member, sender(message), doing, limit))
        self.settle(requests)
        return [request.value for request in requests]

    def step_all(self, code: int, issue: Issue) -> list[Any] | None:
        """Let every member do what a signal says; return what they have to tell, in the order of the slots, if anything.

        In a step of CartPole each line here runs with cold caches. The common case (everybody is idle, quick and does
        not fail) therefore does without the records that recovery needs, and the first thing out of the ordinary makes
        them: `settle` goes on from there.
        """
        members = self.members
        usual = trace.active is None and not self._traced
        for member in members:
            if member.worker is None or member.requests:
                usual = False
        if not usual:
            self._traced = trace.active is not None
            return self._step_by_requests(members, issue, None)
        numbers = [member.worker.signal(code) for member in members if member.worker is not None]
        quick = PLAIN_STORES_PUBLISH
        inline = members[-1].worker
        if members[-1].inline and inline is not None:
            raised = self._native.cap()
            try:
                inline.work()
            finally:
                self._native.restore(raised)
        until = 0.0
        for worker, number in zip(self.remote, numbers, strict=False):
            words = worker.words
            while quick and words[DONE] < number:
                until = until or time.perf_counter() + self.spin_seconds
                quick = time.perf_counter() < until
        if quick:
            for member in members:
                if member.worker is None or member.worker.words[MAIL] != member.worker.read:
                    break
            else:
                return None
            told = self._told(members, numbers)
            if told is not None:
                return told
        return self._step_by_requests(members, issue, numbers)

    def _told(self, members: list[Member], numbers: list[int]) -> list[Any] | None:
        """Return what all members have answered; `None` if one of them failed or put something out."""
        for member in members:
            if member.worker is None:
                return None
            self._take_mail(member, member.worker)
            if member.outputs:
                return None
        told = [member.values.get(number) for member, number in zip(members, numbers, strict=True)]
        for value in told:
            if isinstance(value, Failure):
                return None
        for member, number in zip(members, numbers, strict=True):
            member.values.pop(number, None)
        return told

    def _step_by_requests(self, members: list[Member], issue: Issue, numbers: list[int] | None) -> list[Any]:
        """Step with a record of each request; `numbers` are theirs if they were made already."""
        if numbers is None:
            requests = [self.ask(member, issue, "stepping", "step") for member in members]
        else:
            now, limit = time.monotonic(), self.limits.step
            requests = [Request(m, issue, "stepping", limit, None, n) for m, n in zip(members, numbers, strict=True)]
            for request in requests:
                request.member.since = now
                request.member.requests.append(request)
        self.settle(requests)
        return [request.value for request in requests]

    def settle(self, requests: Sequence[Request], ready: int | None = None) -> None:
        """Wait until `ready` of the requests (default: all) are answered; replace workers that die meanwhile.

        Raises:
            The first failure, in the order of the slots, once all others are answered.
        """
        wanted = len(requests) if ready is None else ready
        self._work_inline(requests, wanted)
        while True:
            for member in self.members:
                if member.requests:
                    self._advance(member)
            if _count_finished(requests) >= wanted:
                break
            self._wait(requests, wanted)
        if self._outputs:
            self._show_outputs()
        if ready is None:
            for request in requests:
                if request.error is not None:
                    raise min((r for r in requests if r.error is not None), key=_slot_of).error or AssertionError

    def _work_inline(self, requests: Sequence[Request], wanted: int) -> None:
        for member in self.members:
            if member.inline and member.requests and isinstance(member.worker, InlineWorker):
                raised = self._native.cap()
                try:
                    if wanted == len(requests):
                        member.worker.work()
                    while _count_finished(requests) < wanted and member.worker.work_once():
                        self._advance(member)
                finally:
                    self._native.restore(raised)

    def _wait(self, requests: Sequence[Request], wanted: int) -> None:
        pending = [
            (r.member.worker.words, r.number) for r in requests if not r.finished and r.member.worker is not None
        ]
        enough = wanted - (len(requests) - len(pending))

        def ready() -> bool:
            count = 0
            for words, number in pending:
                if words[DONE] >= number:
                    count += 1
            return count >= enough

        if self._waiter.spin(ready):
            return
        seconds = self._seconds_left()
        for worker in self._waiter.sleep(self.remote, ready, seconds):
            member = self.members[worker.index]
            if worker.exchange():
                member.since = time.monotonic()
            self._advance(member)
            if not worker.alive() and member.worker is worker:
                self._replace(member)
        self._check_progress()

    def _seconds_left(self) -> float:
        now, least = time.monotonic(), LONGEST_SLEEP_SECONDS
        for member in self.members:
            if not member.inline and member.requests and member.requests[0].timeout is not None:
                least = min(least, member.since + member.requests[0].timeout - now)
        return max(least, 0.0)

    def _check_progress(self) -> None:
        now = time.monotonic()
        for member in self.members:
            if member.inline or not member.requests or member.worker is None:
                continue
            words = member.worker.words
            seen = (int(words[DONE]), int(words[POSITION]), int(words[BEAT]))
            if seen != member.seen:
                member.seen, member.since = seen, now
                continue
            timeout = member.requests[0].timeout
            if timeout is None or now - member.since <= timeout:
                continue
            if member.worker.waits():
                member.since = now
                continue
            in_a_thread = member.worker.pid is None
            self._replace(member, hung_after=timeout)
            if in_a_thread:
                for other in self.members:  # they may have waited for this one
                    other.since = time.monotonic()

    # ---- taking answers in ----

    def _advance(self, member: Member) -> None:
        """Take in what a member has answered."""
        worker = member.worker
        if worker is None:
            return
        done = worker.done  # before the mail: what belongs to these answers is there
        if worker.words[MAIL] != worker.read:
            self._take_mail(member, worker)
        requests = member.requests
        while requests and requests[0].number <= done:
            request = requests.popleft()
            member.since = time.monotonic()
            self._finish(request, member.values.pop(request.number, None))
        if member.outputs:
            self._release_outputs(member, done)

    def _take_mail(self, member: Member, worker: Worker) -> None:
        for frame in worker.collect():
            match frame:
                case Reply(number, value):
                    member.values[number] = value
                case Failure():
                    member.values[frame.number] = frame
                case Unreadable(number, text):
                    place = Place("reading an answer", worker=member.index)
                    member.values[number] = Failure(number, place, text, None)
                case Output():
                    # What worlds say when they are built, which is request 1, they said already if they were before.
                    if frame.number > 1 or not member.built:
                        member.outputs.append(frame)
                case Spans(spans):
                    if trace.active is not None:
                        trace.active.spans.extend(spans)
                        trace.active.names.setdefault(spans[0][3], f"worker {member.index}")
                case _:
                    raise AssertionError(f"no such frame: {frame!r}")

    def _finish(self, request: Request, value: Any) -> None:
        request.finished = True
        if isinstance(value, Failure):
            request.error = value.error()
            if request.internal:
                self._give_up(request.member, request.error)
            return
        if request.internal:
            request.member.built = True
        else:
            request.member.restarts = 0
        request.value = value
        if request.on_value is not None:
            request.on_value(value)

    def _give_up(self, member: Member, error: BaseException | None) -> None:
        """Let a member be without a worker: nothing that was asked of it will be answered."""
        for request in member.requests:
            request.finished, request.error = True, error
        member.requests.clear()
        self._release_outputs(member, None)
        if error is not None and not isinstance(error, StrettoError):
            error = ResetNeeded(f"worker {member.index} could not be started anew: {error!r}")
        member.error = error
        self._discard(member)

    def _release_outputs(self, member: Member, done: int | None) -> None:
        """Let what was put out during requests up to `done` (`None`: all) be shown; the rest may be done again."""
        self._outputs += [output for output in member.outputs if done is None or output.number <= done]
        member.outputs = [output for output in member.outputs if done is not None and output.number > done]

    def _show_outputs(self) -> None:
        outputs, self._outputs = self._outputs, []
        raised = []
        # In the order of the slots: whose mail came first depends on the workers.
        for output in sorted(outputs, key=lambda output: -1 if output.slot is None else output.slot):
            try:
                deliver(output)
            except Exception as error:  # noqa: BLE001  a warning that the caller's filters turn into an error: the rest is shown too
                raised.append(error)
        if raised:
            raise raised[0]

    # ---- replacing ----

    def _replace(self, member: Member, hung_after: float | None = None) -> None:
        """Put a new worker in the place of one that died or hangs, and let it catch up; or give up."""
        try:
            self._replace_or_give_up(member, hung_after)
        except BaseException as error:
            self._give_up(member, ResetNeeded(f"the replacement of worker {member.index} was cut short by {error!r}"))
            raise

    def _replace_or_give_up(self, member: Member, hung_after: float | None) -> None:
        worker = member.worker
        assert worker is not None
        place = self._place(member)
        stack = worker.stack() if hung_after is not None else ""
        ended = worker.last_words()
        self._advance(member)
        if member.worker is None:  # what it had still said was that it cannot be set up
            return
        asked = [request for request in member.requests if not request.internal]
        if hung_after is None:
            told = f"worker {member.index} died {place}: {ended}"
            often = f"{member.restarts + 1} times in a row, the last time {place}" if member.restarts else str(place)
            final: StrettoError = WorkerDied(f"worker {member.index} died {often}: {ended}", place, member.restarts)
            enough = member.restarts >= self.limits.max_restarts
        else:
            told = f"no answer for {hung_after:g} s {place}"
            final = WorldHung(f"{told}; its Python stack was:\n{stack.rstrip() or '(unknown)'}", place, stack)
            enough = worker.pid is None or not asked or any(request.hung for request in asked)
            enough = enough or member.restarts >= self.limits.max_restarts
        if self._letting_go:
            closing = bool(asked) and asked[0].doing == _CLOSING
            self._give_up(member, final if closing and hung_after is not None else None)
        elif enough or self.limits.on_crash == "raise":
            self._give_up(member, final)
        else:
            if hung_after is not None:
                asked[0].hung = True
            member.restarts += 1
            if self.memory is not None:
                self.memory.restarted()
            member.lost_because = None if self.limits.on_crash == "replay" else told.partition("\n")[0]
            self._discard(member)
            if asked:
                self._bring_back(member, asked)
            # Else it has answered, and its slots are where they will be only when all others have: not now.

    def _worker_anew(self, member: Member) -> Worker | None:
        if member.error is None:
            self._bring_back(member, [])
        return member.worker

    def _bring_back(self, member: Member, asked: list[Request]) -> None:
        """Start a worker anew, restore its slots, and ask again what was asked."""
        lost_because = member.lost_because
        if lost_because is None:
            member.outputs.clear()  # what it will do again it will say again
        self._release_outputs(member, None)
        member.requests.clear()
        try:
            self._start_worker(member)
        except StrettoError as error:
            member.requests.extend(asked)
            self._give_up(member, error)
            return
        if self._attach is not None and self.memory is not None:
            self._ask_internal(member, self._attach, "attaching", None)
            plans = self.memory.plans(member.slots, lost_because)
            self._ask_internal(member, Restore(plans), "replaying", self.memory.restored)
        for request in asked:
            assert member.worker is not None
            request.number = request.issue(member.worker)
            member.requests.append(request)

    def _ask_internal(
        self, member: Member, message: object, doing: str, on_value: Callable[[Any], None] | None
    ) -> None:
        request = self.ask(member, sender(message), doing, "step" if doing == "replaying" else "start", on_value)
        request.internal = True

    def _discard(self, member: Member) -> None:
        if member.worker is not None:
            self._waiter.forget(member.worker)
            if isinstance(member.worker, InlineWorker):
                watchdog.leave(member.worker)
            member.worker.kill()
            member.worker = None
        self.remote = [m.worker for m in self.members if m.worker is not None and not m.inline]

    def _place(self, member: Member) -> Place:
        assert member.worker is not None
        doing = member.requests[0].doing if member.requests else "idle"
        position = int(member.worker.words[POSITION])
        slot = member.first + position - 1 if position else None
        if slot is None or self.memory is None:
            return Place(doing, worker=member.index, slot=slot)
        return self.memory.place(slot, doing, member.index)

    def recover(self) -> None:
        """Wait for what is under way after a failure or an interruption, and start anew who is lost.

        The slots of those who are started anew are as if never reset.
        """
        for member in self.members:
            if member.worker is None or not member.worker.alive():
                self._give_up(member, None)
            else:
                self._record_what_is_under_way(member, member.worker)
        leftovers = [request for member in self.members for request in member.requests]
        self._letting_go = True
        try:
            self.settle(leftovers, ready=len(leftovers))
        finally:
            self._letting_go = False
        for member in self.members:
            if member.worker is None:
                member.restarts, member.lost_because = 0, None
                self._bring_back(member, [])
        self.settle([request for member in self.members for request in member.requests])

    def _record_what_is_under_way(self, member: Member, worker: Worker) -> None:
        """Make up for a `step_all` that was interrupted before it had made its records."""
        if worker.done < worker.made and not member.requests:
            member.since = time.monotonic()
            member.requests.append(Request(member, _not_again, "stepping", self.limits.step, number=worker.made))

    @property
    def has_failed(self) -> bool:
        """Whether there are slots that only `recover` can bring back."""
        return any(member.error is not None for member in self.members)

    # ---- moving ----

    def move_out(self) -> None:
        """Move the caller's own share into a worker, so that the caller stays free; tried once."""
        if self._moved_out or self.backend.start is None:
            return
        self._moved_out = True
        for member in self.members:
            if isinstance(member.worker, InlineWorker):
                reason = self._move_out(member, member.worker)
                if reason is not None:
                    warnings.warn(
                        f"the caller steps its own share of the environments in recv(), because they cannot be "
                        f"brought to where they are in another process: {reason}; isolate=True starts them there",
                        FewerWorkers,
                        stacklevel=user_stacklevel(),
                    )

    def _move_out(self, member: Member, inline: InlineWorker) -> str | None:
        """Restore the share in a worker beside the caller's; if that fails, leave it where it is and say why."""
        self.settle(list(member.requests))
        member.inline, member.worker = False, None
        results: list[Restored] = []
        self._letting_go = True
        try:
            self._bring_back(member, [])
            for request in member.requests:
                request.on_value = results.append if request.doing == "replaying" else None
            pending = list(member.requests)
            self.settle(pending, ready=len(pending))
            problems = [repr(request.error) for request in pending if request.error is not None]
            problems += [reason for result in results for reason in result.lost.values()]
            problems += [] if results else ["the process died"]
        finally:
            self._letting_go = False
            if not results or results[0].lost:
                self._give_up(member, None)
                member.inline, member.worker, member.error = True, inline, None
        if problems:
            return problems[0]
        assert self.memory is not None
        self.memory.restored(results[0])
        watchdog.leave(inline)
        inline.close(0.0)
        return None

    # ---- ending ----

    @property
    def worker_pids(self) -> list[int]:
        """The processes, other than the caller's, that hold worlds now."""
        return [m.worker.pid for m in self.members if m.worker is not None and m.worker.pid is not None]

    def close(self) -> None:
        """End all workers and give everything back; may be called twice, and by the finalizer.

        Raises:
            What the first world raised that failed to close, or `WorldHung`; all others are closed by then.
        """
        if self._closed or self._owner != os.getpid():
            return  # a process that was forked off owns none of this
        self._closed = True
        try:
            self._stop_all()
        finally:
            for member in self.members:
                self._discard(member)
                member.requests.clear()
            self._waiter.forget_all()
            self._bell.close()
            self.arena.close()
            self._show_outputs()

    def _stop_all(self) -> None:
        """Let all workers close their worlds. One that dies meanwhile has nothing left to lose."""
        self._letting_go = True
        stops = []
        for member in self.members:
            worker = member.worker
            if worker is None or not worker.alive():
                self._give_up(member, None)
                continue
            if isinstance(worker, InlineWorker):
                worker.forget_requests()
            self._record_what_is_under_way(member, worker)
            for request in member.requests:
                request.timeout = BUSY_SECONDS
            member.since = time.monotonic()
            stops.append(self.ask(member, Worker.stop, _CLOSING, "reset"))
        try:
            self.settle(stops)
        finally:
            for member in self.members:
                if member.worker is not None and not member.requests:
                    member.worker.close(EXIT_SECONDS)
                    self._take_mail(member, member.worker)
                    self._release_outputs(member, None)


def _not_again(worker: Worker) -> int:
    raise AssertionError(f"worker {worker.index} starts once")


def sender(message: object) -> Issue:
    """Return how to ask with a message. Actions are plain arrays; all else may hold what only the caller's main knows."""
    by_value = not isinstance(message, Step)
    return lambda worker: worker.send(message, by_value=by_value)


def _current_limit(member: Member, of_a_step: float | None) -> float | None:
    """Return the limit of what a member does now; asked from another thread, so its requests may be gone meanwhile."""
    try:
        return member.requests[0].timeout
    except IndexError:
        return of_a_step


def _count_finished(requests: Sequence[Request]) -> int:
    count = 0  # a loop, not a sum: this stands in every step
    for request in requests:
        if request.finished:
            count += 1
    return count


def _slot_of(request: Request) -> int:
    return request.member.first
