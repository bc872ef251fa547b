"""Crew: the workers of one vector environment. Requests go out, answers come in, and who dies is replaced."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

from stretto.envs.asking import Asking
from stretto.envs.members import Limits, Member, Request, not_again, sender
from stretto.envs.messages import Restore, Restored
from stretto.errors import FewerWorkers, Place, ResetNeeded, StrettoError, WorkerDied, WorldHung, user_stacklevel
from stretto.workers import watchdog
from stretto.workers.backends import Backend
from stretto.workers.base import Worker
from stretto.workers.control import POSITION
from stretto.workers.inline import InlineWorker

BUSY_SECONDS = 1.0
"""How long a worker that is at something when it shall be closed (after Ctrl-C, after a failure) may take to end it."""

EXIT_SECONDS = 1.0
"""How long a worker that has closed its worlds may take to be gone."""

CLOSING = "closing"


class Crew(Asking):
    """Workers that are replaced when they die or hang, and brought to where they were."""

    def __init__(self, backend: Backend, limits: Limits, *, spin_seconds: float) -> None:
        super().__init__(backend, limits, spin_seconds=spin_seconds)
        self._owner = os.getpid()
        self._letting_go = False
        self._moved_out = False
        self._closed = False

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
        # Asking for a stack takes up to half a second, and nobody is told of a step that is let go.
        told_of = hung_after is not None and (not self._letting_go or member.requests[0].doing == CLOSING)
        stack = worker.stack() if told_of else ""
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
            closing = bool(asked) and asked[0].doing == CLOSING
            self._give_up(member, final if closing and hung_after is not None else None)
        elif enough or self.limits.on_crash == "raise":
            self._give_up(member, final)
        else:
            if hung_after is not None:
                asked[0].hung = True
            member.restarts += 1
            if self.memory is None:
                self._early_restarts += 1
            else:
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
            member.requests.append(Request(member, not_again, "stepping", self.limits.step, number=worker.made))

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
                member.room = member.board = None
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
                request.until = time.monotonic() + BUSY_SECONDS
            member.since = time.monotonic()
            stops.append(self.ask(member, Worker.stop, CLOSING, "reset"))
        try:
            self.settle(stops)
        finally:
            for member in self.members:
                if member.worker is not None and not member.requests:
                    member.worker.close(EXIT_SECONDS)
                    self._take_mail(member, member.worker)
                    self._release_outputs(member, None)
