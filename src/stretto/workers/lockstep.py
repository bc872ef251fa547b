"""Lockstep: one signal for idle workers, all at once, as every step of a vector environment is.

In a step of CartPole each line of this runs with cold caches. It therefore does without the records that recovery needs:
the number of a request is what its worker has `made`. What is out of the ordinary is left to the supervisor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from stretto.workers.base import Failure, Worker
from stretto.workers.control import DONE, MAIL, NOTE, NOTE_BITS, PLAIN_STORES_PUBLISH
from stretto.workers.requests import Seat
from stretto.workers.waiting import Spin

UNSETTLED: list[Any] = []
"""Stands for the answers where somebody is slow, has failed or put something out: now they need records."""


def signal_idle(seats: Sequence[Seat], workers: Sequence[Worker], code: int, bet: Spin) -> list[Any] | None:
    """Let the workers of all seats do what a signal says; return their answers in order, `None` if there are none.

    Those that do not run in the caller are looked at for as long as that pays.
    """
    remote = []
    for seat, worker in zip(seats, workers, strict=True):
        worker.signal(code)
        if not seat.inline:
            remote.append(worker)
    quick = PLAIN_STORES_PUBLISH
    began = time.perf_counter()
    if len(remote) < len(workers):
        for seat, worker in zip(seats, workers, strict=True):
            if seat.inline:
                worker.work()
    until = now = 0.0
    for worker in remote:
        words, number = worker.words, worker.made
        while quick and words[DONE] < number:
            now = time.perf_counter()
            until = until or bet.begin(now, now - began)
            quick = now < until
    if not quick:
        return UNSETTLED
    if until:
        bet.ended = now
    for worker in workers:
        words = worker.words
        if words[MAIL] != worker.read or words[NOTE] >> NOTE_BITS == worker.made:
            return _answers(seats, workers)
    return None


def _answers(seats: Sequence[Seat], workers: Sequence[Worker]) -> list[Any]:
    for seat, worker in zip(seats, workers, strict=True):
        seat.take_mail(worker)
        if seat.outputs or isinstance(seat.values.get(worker.made), Failure):
            return UNSETTLED
    return [seat.take_value(worker.made) for seat, worker in zip(seats, workers, strict=True)]
