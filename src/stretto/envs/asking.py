"""Asking workers and waiting for what they answer; how one that dies is replaced is said elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from stretto import trace
from stretto.budget import NativeThreads
from stretto.envs.group_worker import GroupFactory
from stretto.envs.info_buffer import speaks_of
from stretto.envs.members import (
    Issue,
    Limits,
    Member,
    Memory,
    Request,
    count_finished,
    current_limit,
    first_slot,
    not_again,
    sender,
)
from stretto.envs.messages import Attach, Describe, Extras
from stretto.errors import Place, ResetNeeded, StrettoError
from stretto.spaces import Array
from stretto.workers import watchdog
from stretto.workers.arena import Arena
from stretto.workers.backends import Backend
from stretto.workers.base import Failure, Output, Reply, Spans, Worker
from stretto.workers.control import (
    BEAT,
    DONE,
    INFOS,
    KNOWN,
    MAIL,
    PLAIN_STORES_PUBLISH,
    POSITION,
    TRACING,
    Bell,
    spin_limit,
)
from stretto.workers.inline import InlineWorker
from stretto.workers.mail import Unreadable
from stretto.workers.output import deliver
from stretto.workers.resources import resources
from stretto.workers.waiting import LONGEST_SLEEP_SECONDS, Waiter


class Asking:
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
        self._early_restarts = 0  # of workers that died while they built their worlds, before there was a memory
        self._outputs: list[Output] = []
        self._traced = False  # the workers were told to trace, and not yet to stop

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
            watchdog.watch(inline, lambda: current_limit(member, self.limits.step))
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
        member.clear_board()
        self.remote = [m.worker for m in self.members if m.worker is not None and not m.inline]
        # The worker's constructor has sent `Start`, which is its request number 1.
        request = Request(member, not_again, "building", self.limits.start, number=1, internal=True)
        member.requests.appendleft(request)

    def attach(self, message: Attach, memory: Memory, board: Array | None) -> None:
        """Tell all workers, also those that are started later, where the arrays are; `memory` can then restore them.

        On the `board`, if there is one, is room for the infos of every slot.
        """
        self._attach, self.memory = message, memory
        if board is not None and self.backend.crosses_processes:
            for member in self.members:
                member.room = board[member.first : member.first + member.count]
                member.clear_board()
        for _ in range(self._early_restarts):
            memory.restarted()
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
        began = time.perf_counter()
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
                now = time.perf_counter()
                until = until or now + spin_limit(self.spin_seconds, now - began)
                quick = now < until
        if quick:
            for member, number in zip(members, numbers, strict=True):
                w = member.worker
                if w is None or w.words[MAIL] != w.read or speaks_of(w.words[INFOS], number):
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
        for member, number in zip(members, numbers, strict=True):
            if isinstance(member.values.get(number), Failure):
                return None
        return [member.take_value(number) for member, number in zip(members, numbers, strict=True)]

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
            if count_finished(requests) >= wanted:
                break
            self._wait(requests, wanted)
        if self._outputs:
            self._show_outputs()
        if ready is None:
            for request in requests:
                if request.error is not None:
                    raise min((r for r in requests if r.error is not None), key=first_slot).error or AssertionError

    def _work_inline(self, requests: Sequence[Request], wanted: int) -> None:
        for member in self.members:
            if member.inline and member.requests and isinstance(member.worker, InlineWorker):
                raised = self._native.cap()
                try:
                    if wanted == len(requests):
                        member.worker.work()
                    while count_finished(requests) < wanted and member.worker.work_once():
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
            if not member.inline and member.requests:
                ends = _ends(member, member.requests[0])
                least = least if ends is None else min(least, ends - now)
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
            request = member.requests[0]
            ends = _ends(member, request)
            if ends is None or now <= ends:
                continue
            if request.until is None and member.worker.waits():
                member.since = now
                continue
            in_a_thread = member.worker.pid is None
            self._replace(member, hung_after=request.timeout or 0.0)
            if in_a_thread:
                for other in self.members:  # they may have waited for this one
                    other.since = time.monotonic()

    def _replace(self, member: Member, hung_after: float | None = None) -> None:
        """Put a new worker in the place of one that died or hangs; or give up."""
        raise NotImplementedError

    def _worker_anew(self, member: Member) -> Worker | None:
        """Return a new worker for a member that has none, if it may have one."""
        raise NotImplementedError

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
            self._finish(request, member.take_value(request.number))
        if member.outputs:
            self._release_outputs(member, done)

    def _take_mail(self, member: Member, worker: Worker) -> None:
        for frame in worker.collect():
            match frame:
                case Reply(number, value):
                    member.values[number] = value
                    if member.board is not None and isinstance(value, Extras):
                        worker.words[KNOWN] = member.board.learn_from(value.infos, worker.words[KNOWN])
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

    def _discard(self, member: Member) -> None:
        if member.worker is not None:
            self._waiter.forget(member.worker)
            if isinstance(member.worker, InlineWorker):
                watchdog.leave(member.worker)
            member.worker.kill()
            member.worker = None
        self.remote = [m.worker for m in self.members if m.worker is not None and not m.inline]


def _ends(member: Member, request: Request) -> float | None:
    """Return when a member's request has taken too long, unless there is progress before that; `None`: never."""
    if request.until is not None:
        return request.until
    return None if request.timeout is None else member.since + request.timeout
