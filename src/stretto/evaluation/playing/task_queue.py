"""TaskQueue: the workers of an evaluation, who are given one thing after the other until nothing is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stretto.workers.output import deliver_all
from stretto.workers.requests import Request, Seat, sender
from stretto.workers.supervisor import Supervisor

T = TypeVar("T")

_MOST_STARTS = 10
"""How many workers in a row may die before they can be given anything."""


class TaskQueue:
    """Workers that are made ready before they are given anything: a new process may take longer than any step.

    They are ready when they have answered the `first` message, which may take `first_seconds`.
    """

    def __init__(self, supervisor: Supervisor, first: object, first_seconds: float) -> None:
        self._supervisor, self._first, self._first_seconds = supervisor, first, first_seconds
        self._new = {seat.index for seat in supervisor.seats}
        self._died = 0
        self._given: dict[int, tuple[Request, Any]] = {}

    @property
    def given(self) -> list[tuple[Request, Any]]:
        """What workers are at now; may be asked from any thread."""
        return list(self._given.values())

    def do(
        self,
        things: Iterable[T],
        message: Callable[[T], tuple[object, str, float | None]],
        take: Callable[[T, Request], Iterable[T]],
        workers: int | None = None,
        pop: Callable[[deque[T]], T] = deque.popleft,
    ) -> None:
        """Give each thing to a worker that is free; `take` returns what is to be done again.

        `message` returns what is sent for a thing, what that does, and its limit of seconds. `workers` is how many of
        them take part, by default all. `pop` takes the next thing from those that wait; it may make one of several.

        What is to be done again is done last: whatever ended a process, such as too little memory, may have passed then.
        """
        waiting = deque(things)
        starting: dict[int, Request] = {}
        given: dict[int, tuple[Request, T]] = {}
        self._given = given

        def give(seat: Seat) -> None:
            if waiting and seat.index not in self._new:
                thing = pop(waiting)
                given[seat.index] = self._ask(seat, *message(thing)), thing

        while waiting or given:
            seats = self._supervisor.seats[:workers]
            idle = [seat for seat in seats if seat.index not in given and seat.index not in starting]
            # Who is ready goes first: who starts may have to wait for a place for as long as the others work.
            for seat in idle:
                give(seat)
            new = [seat for seat in idle if seat.index in self._new]
            for seat in new[: max(0, len(waiting) - len(starting))]:
                starting[seat.index] = self._ask(seat, self._first, "getting ready", self._first_seconds)
            under_way = [*starting.values(), *(request for request, _ in given.values())]
            self._supervisor.wait(under_way, 1)
            for request in under_way:
                if not request.finished:
                    continue
                index = request.seat.index
                if request.lost:
                    self._new.add(index)
                if starting.pop(index, None) is request:
                    self._started(request, alone=not given)
                else:
                    done = given.pop(index)[1]
                    if request.error is None:
                        give(request.seat)  # it works while its answer is looked at
                    again = list(take(done, request))
                    waiting.extend(again)
                    if not again:  # else it will be said again
                        deliver_all(request.outputs)

    def _ask(self, seat: Seat, message: object, doing: str, limit_seconds: float | None) -> Request:
        return self._supervisor.ask(seat, sender(message), doing, limit_seconds)

    def _started(self, request: Request, *, alone: bool) -> None:
        if request.error is None:
            self._new.discard(request.seat.index)
            self._died = 0
            return
        self._died += 1
        if not request.lost or (alone and self._died >= _MOST_STARTS):  # else the others go on
            raise request.error
