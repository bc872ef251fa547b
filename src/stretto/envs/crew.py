"""Crew: the workers of one vector environment. Requests go out, answers come in, and who dies is replaced."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto import trace
from stretto.budget import NativeThreads
from stretto.envs.backends import Backend
from stretto.envs.messages import Attach, Restore, Restored, SlotPlan
from stretto.envs.service import GroupFactory
from stretto.errors import Place, StrettoError, WorkerDied, WorldHung
from stretto.workers.arena import Arena
from stretto.workers.base import Failure, Output, Reply, Spans, Worker
from stretto.workers.control import DONE, MAIL, POSITION, TRACING, Bell
from stretto.workers.inline import InlineWorker
from stretto.workers.output import deliver
from stretto.workers.process import ProcessWorker
from stretto.workers.waiting import LONGEST_SLEEP_SECONDS, Waiter

CLOSE_SECONDS = 2.0
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
    """A share of the slots, and the worker that has it now."""

    index: int
    first: int
    count: int
    factory: GroupFactory
    worker: Worker | None = None
    inline: bool = False
    requests: deque[Request] = field(default_factory=deque)
    values: dict[int, Any] = field(default_factory=dict)
    restarts: int = 0
    seen: tuple[int, int] = (0, 0)
    since: float = 0.0

    @property
    def slots(self) -> range:
        return range(self.first, self.first + self.count)


class Memory(Protocol):
    """What the crew has to know to replace a worker."""

    def plans(self, slots: Iterable[int], replay: bool) -> list[SlotPlan]: ...
    def restored(self, result: Restored) -> None: ...
    def restarted(self) -> None: ...
    def seed_of(self, slot: int) -> int | None: ...


class Crew:
    """Owns the workers, the bell that wakes the caller, and the arena that holds their arrays."""

    def __init__(self, backend: Backend, limits: Limits, *, spin_seconds: float) -> None:
        self.backend = backend
        self.limits = limits
        self.memory: Memory | None = None
        self.ever_started: set[int] = set()
        self.members: list[Member] = []
        self.remote: list[Worker] = []
        self.arena = Arena.create(shared=backend.crosses_processes)
        self.spin_seconds = spin_seconds
        self._bell = Bell.create()
        self._waiter = Waiter(self._bell, spin_seconds)
        self._native = NativeThreads()
        self._attach: Attach | None = None
        self._outputs: list[Output] = []
        self._owner = os.getpid()
        self._closed = False

    # ---- starting ----

    def start(self, factories: Sequence[GroupFactory], inline: int | None) -> list[Any]:
        """Start a worker for each factory (number `inline` in the caller) and return what they say of their worlds."""
        for index, factory in enumerate(factories):
            member = Member(index, factory.first, len(factory.makers), factory, inline=index == inline)
            self.members.append(member)
        requests = []
        for member in sorted(self.members, key=lambda m: m.inline):  # the others build while the caller does
            requests.append(self._start_worker(member))
        self.settle(requests)
        return [request.value for request in sorted(requests, key=lambda r: r.member.index)]

    def _start_worker(self, member: Member) -> Request:
        capacity = 2 * member.count + 64
        if member.inline:
            member.worker = InlineWorker(member.index, capacity, self.arena, member.factory)
        else:
            assert self.backend.start is not None
            member.worker = self.backend.start(
                member.index,
                capacity,
                self.arena,
                self._bell,
                member.factory,
                spin_seconds=self.spin_seconds,
                start_timeout=self.limits.start,
            )
            self._waiter.watch(member.worker)
        self.ever_started.add(member.index)
        member.values, member.since, member.seen = {}, time.monotonic(), (0, 0)
        self.remote = [m.worker for m in self.members if m.worker is not None and not m.inline]
        # The worker's constructor has sent `Start`, which is its request number 1.
        request = Request(member, lambda worker: 1, "building", self.limits.start, number=1, internal=True)
        member.requests.appendleft(request)
        return request

    def attach(self, message: Attach, memory: Memory) -> None:
        """Tell all workers, also those that are started later, where the arrays are; `memory` can then restore them."""
        self._attach, self.memory = message, memory
        self.settle([self.ask(member, lambda w: w.send(message), "attaching", "start") for member in self.members])

    # ---- asking and waiting ----

    def ask(
        self, member: Member, issue: Issue, doing: str, limit: str, on_value: Callable[[Any], None] | None = None
    ) -> Request:
        """Make a request of a member; `settle` waits for it."""
        worker = member.worker
        assert worker is not None
        if not member.requests:
            member.since = time.monotonic()
        request = Request(member, issue, doing, getattr(self.limits, limit), on_value)
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
                requests.append(self.ask(member, _sender(message), doing, limit))
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
            self._advance_all()
            if _count_finished(requests) >= wanted:
                break
            self._wait(requests, wanted)
        self._show_outputs()
        if ready is None:
            failed = [request for request in requests if request.error is not None]
            if failed:
                raise min(failed, key=lambda r: r.member.first).error or AssertionError

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
            self._advance(member)
            if not worker.alive() and member.worker is worker:
                self._replace(member)
        self._check_progress()

    def _seconds_left(self) -> float:
        now, least = time.monotonic(), LONGEST_SLEEP_SECONDS
        for member in self.members:
            if member.requests and member.requests[0].timeout is not None:
                least = min(least, member.since + member.requests[0].timeout - now)
        return max(least, 0.0)

    def _check_progress(self) -> None:
        now = time.monotonic()
        for member in self.members:
            if member.inline or not member.requests or member.worker is None:
                continue
            words = member.worker.words
            seen = (int(words[DONE]), int(words[POSITION]))
            if seen != member.seen:
                member.seen, member.since = seen, now
                continue
            timeout = member.requests[0].timeout
            if timeout is not None and now - member.since > timeout:
                self._replace(member, hung_after=timeout)

    # ---- taking answers in ----

    def _advance_all(self) -> None:
        for member in self.members:
            if member.requests:
                self._advance(member)

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

    def _take_mail(self, member: Member, worker: Worker) -> None:
        for frame in worker.collect():
            match frame:
                case Reply(number, value):
                    member.values[number] = value
                case Failure():
                    member.values[frame.number] = frame
                case Output():
                    self._outputs.append(frame)
                case Spans(spans):
                    if trace.active is not None:
                        trace.active.spans.extend(spans)
                        trace.active.names.setdefault(spans[0][3], f"worker {member.index}")

    def _finish(self, request: Request, value: Any) -> None:
        request.finished = True
        if isinstance(value, Failure):
            request.error = value.error()
            if request.internal:
                self._give_up(request.member, request.error)
            return
        if not request.internal:
            request.member.restarts = 0
        request.value = value
        if request.on_value is not None:
            request.on_value(value)

    def _give_up(self, member: Member, error: BaseException) -> None:
        """A worker that cannot even be set up: nothing that was asked of it will be answered."""
        for request in member.requests:
            request.finished, request.error = True, error
        member.requests.clear()
        self._discard(member)

    def _show_outputs(self) -> None:
        outputs, self._outputs = self._outputs, []
        for output in outputs:
            deliver(output)

    # ---- replacing ----

    def _replace(self, member: Member, hung_after: float | None = None) -> None:
        """Put a new worker in the place of one that died or hangs, and let it catch up; or give up."""
        worker, asked = member.worker, [r for r in member.requests if not r.internal]
        assert worker is not None
        place = self._place(member)
        stack = worker.stack() if hung_after is not None else ""
        killable = isinstance(worker, ProcessWorker)
        ended = worker.last_words()
        self._advance(member)
        asked = [r for r in asked if not r.finished]
        again = any(r.hung for r in asked)
        error: StrettoError | None = None
        if hung_after is not None and (again or not killable or self.limits.on_crash == "raise" or not asked):
            told = f"no answer for {hung_after:g} s {place}"
            error = WorldHung(f"{told}; its Python stack was:\n{stack.rstrip() or '(unknown)'}", place, stack)
        elif hung_after is None and (self.limits.on_crash == "raise" or member.restarts >= self.limits.max_restarts):
            times = f"{member.restarts + 1} times in a row " if member.restarts else ""
            error = WorkerDied(f"worker {member.index} died {times}{place}: {ended}", place, member.restarts)
        if error is not None:
            self._show_outputs()
            self._give_up(member, error)
            return
        if hung_after is not None and asked:
            asked[0].hung = True
        member.restarts += 1
        if self.memory is not None:
            self.memory.restarted()
        self._discard(member)
        self._bring_back(member, asked, replay=self.limits.on_crash == "replay")

    def _bring_back(self, member: Member, asked: list[Request], replay: bool) -> None:
        member.requests.clear()
        try:
            self._start_worker(member)
        except StrettoError as error:
            member.requests.extend(asked)
            self._give_up(member, error)
            return
        if self._attach is not None and self.memory is not None:
            self._ask_internal(member, self._attach, "attaching", None)
            plans = self.memory.plans(member.slots, replay)
            if plans:
                self._ask_internal(member, Restore(plans), "replaying", self.memory.restored)
        for request in asked:
            assert member.worker is not None
            request.number = request.issue(member.worker)
            member.requests.append(request)

    def _ask_internal(
        self, member: Member, message: object, doing: str, on_value: Callable[[Any], None] | None
    ) -> None:
        request = self.ask(member, _sender(message), doing, "step" if doing == "replaying" else "start", on_value)
        request.internal = True

    def _discard(self, member: Member) -> None:
        if member.worker is not None:
            self._waiter.forget(member.worker)
            member.worker.kill()
            member.worker = None
        self.remote = [m.worker for m in self.members if m.worker is not None and not m.inline]

    def _place(self, member: Member) -> Place:
        assert member.worker is not None
        position = int(member.worker.words[POSITION])
        slot = member.first + position - 1 if 0 < position <= member.count else None
        doing = member.requests[0].doing if member.requests else "idle"
        seed = None if slot is None or self.memory is None else self.memory.seed_of(slot)
        return Place(doing, worker=member.index, slot=slot, seed=seed)

    def revive(self) -> None:
        """Start workers anew that were given up; their slots are as if never reset."""
        for member in self.members:
            if member.worker is None:
                member.restarts = 0
                self._bring_back(member, [], replay=False)
            elif not member.inline and not member.worker.alive():
                self._replace(member)
        self.settle([request for member in self.members for request in member.requests])

    def move_out(self) -> None:
        """Move the caller's own share into a worker, so that the caller stays free."""
        for member in self.members:
            if member.inline and self.backend.start is not None:
                assert member.worker is not None
                member.worker.close(0.0)
                member.inline = False
                member.worker = None
                self._bring_back(member, [], replay=True)
        self.settle([request for member in self.members for request in member.requests])

    @property
    def worker_pids(self) -> list[int]:
        """The processes, other than the caller's, that hold worlds now."""
        return [m.worker.pid for m in self.members if m.worker is not None and m.worker.pid is not None]

    def close(self) -> None:
        """End all workers and give everything back; may be called twice, and by the finalizer."""
        if self._closed or self._owner != os.getpid():
            return  # a process that was forked off owns none of this
        self._closed = True
        errors = []
        workers = [member.worker for member in self.members if member.worker is not None]
        for worker in workers:
            if isinstance(worker, ProcessWorker):
                worker.ask_to_stop()
        for worker in workers:
            try:
                worker.close(CLOSE_SECONDS)
            except Exception as error:  # a world that fails to close must not keep the others open
                errors.append(error)
        for member in self.members:
            member.worker = None
        self._bell.close()
        self.arena.close()
        with contextlib.suppress(Exception):
            self._show_outputs()
        if errors:
            raise errors[0]


def _sender(message: object) -> Issue:
    return lambda worker: worker.send(message)


def _count_finished(requests: Sequence[Request]) -> int:
    return sum(1 for request in requests if request.finished)
