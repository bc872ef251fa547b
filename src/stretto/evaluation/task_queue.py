"""TaskQueue: the workers of an evaluation, who are given one thing after the other until nothing is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from stretto.evaluation.episode_worker import LOADING_SECONDS, Ready
from stretto.workers.pool import Answer, Pool

T = TypeVar("T")

_MOST_STARTS = 10
"""How many workers in a row may die before they can be given anything."""


class TaskQueue:
    """Workers that are made ready before they are given anything: a new process may take longer than any step."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._new = set(range(len(pool)))
        self._starting: set[int] = set()
        self._died = 0

    def do(
        self,
        things: Iterable[T],
        message: Callable[[T], tuple[object, float | None]],
        take: Callable[[T, Answer], Iterable[T]],
    ) -> None:
        """Give each thing to a worker that is free, as a `message` with a limit; `take` returns what is to be done again.

        What is to be done again is done last: whatever ended a process, such as too little memory, may have passed then.
        """
        waiting = deque(things)
        given: dict[int, T] = {}
        while waiting or given:
            for worker in self._pool.idle[: len(waiting)]:
                if worker in self._new:
                    self._starting.add(worker)
                    self._pool.give(worker, Ready(), LOADING_SECONDS)
                else:
                    given[worker] = waiting.popleft()
                    self._pool.give(worker, *message(given[worker]))
            for answer in self._pool.wait():
                if answer.lost:
                    self._new.add(answer.worker)
                if answer.worker in self._starting:
                    self._starting.discard(answer.worker)
                    self._started(answer)
                else:
                    waiting.extend(take(given.pop(answer.worker), answer))

    def _started(self, answer: Answer) -> None:
        if answer.error is None:
            self._new.discard(answer.worker)
            self._died = 0
            return
        self._died += 1
        if not answer.lost or self._died == _MOST_STARTS:
            raise answer.error
