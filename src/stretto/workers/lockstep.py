"""Lockstep: one signal for all workers of a supervisor at once, as every step of a vector environment is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stretto import trace
from stretto.budget import NativeThreads
from stretto.workers.base import Failure, Worker
from stretto.workers.control import DONE, MAIL, NOTE, NOTE_BITS, PLAIN_STORES_PUBLISH
from stretto.workers.inline import InlineWorker
from stretto.workers.requests import signaller
from stretto.workers.waiting import spin_limit

if TYPE_CHECKING:
    from stretto.workers.supervisor import Supervisor


class Lockstep:
    """Lets workers do what a signal says; `native` caps the threads of those that run in the caller.

    In a step of CartPole each line of this runs with cold caches. The common case (everybody is idle, quick and does not
    fail) therefore does without the records that recovery needs, and the first thing out of the ordinary makes them. Until
    then the number of a request is what its worker has `made`.
    """

    def __init__(self, supervisor: Supervisor, native: NativeThreads, spin_seconds: float) -> None:
        self._supervisor, self._native, self._spin_seconds = supervisor, native, spin_seconds
        self._traced = False  # the workers were told to trace, and not yet to stop

    def signal_all(self, code: int, doing: str, limit_seconds: float | None) -> list[Any] | None:
        """Let every worker do what a signal says; return what they have to tell, in order, if anything."""
        supervisor = self._supervisor
        seats = supervisor.seats
        workers = [seat.worker for seat in seats if seat.worker is not None and not seat.requests]
        if len(workers) < len(seats) or trace.active is not None or self._traced:
            self._traced = trace.active is not None
            return supervisor.settle([supervisor.ask(seat, signaller(code), doing, limit_seconds) for seat in seats])
        if len(workers) == 1 and isinstance(workers[0], InlineWorker):
            return self._do_alone(workers[0], code, doing, limit_seconds)
        for worker in workers:
            worker.signal(code)
        quick = PLAIN_STORES_PUBLISH
        remote = supervisor.remote
        began = time.perf_counter()
        if len(remote) < len(workers):
            raised = self._native.cap()
            try:
                for seat, worker in zip(seats, workers, strict=True):
                    if seat.inline:
                        worker.work()
            finally:
                self._native.restore(raised)
        until = 0.0
        for worker in remote:
            words, number = worker.words, worker.made
            while quick and words[DONE] < number:
                now = time.perf_counter()
                until = until or now + spin_limit(self._spin_seconds, now - began)
                quick = now < until
        if quick:
            for worker in workers:
                words = worker.words
                if words[MAIL] != worker.read or words[NOTE] >> NOTE_BITS == worker.made:
                    break
            else:
                return None
            values = self._values(workers)
            if values is not None:
                return values
        return supervisor.settle([supervisor.record(seat, signaller(code), doing, limit_seconds) for seat in seats])

    def _do_alone(self, worker: InlineWorker, code: int, doing: str, limit_seconds: float | None) -> list[Any] | None:
        """Let the caller, who has no other workers, do what a signal says."""
        raised = self._native.cap()
        try:
            value = worker.do(code)
        finally:
            self._native.restore(raised)
        if not worker.has_mail:
            return None if value is None else [value]
        seat = self._supervisor.seats[0]
        request = self._supervisor.record(seat, signaller(code), doing, limit_seconds)
        seat.values.setdefault(request.number, value)
        return self._supervisor.settle([request])

    def _values(self, workers: Sequence[Worker]) -> list[Any] | None:
        """Return what all have answered; `None` if one of them failed or put something out."""
        seats = self._supervisor.seats
        for seat, worker in zip(seats, workers, strict=True):
            seat.take_mail(worker)
            if seat.outputs or isinstance(seat.values.get(worker.made), Failure):
                return None
        return [seat.take_value(worker.made) for seat, worker in zip(seats, workers, strict=True)]
