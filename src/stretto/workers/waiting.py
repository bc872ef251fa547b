"""Waiting, on both sides: a short look where a core is spare, then a sleep that a bell, mail or a death ends."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence

from stretto.workers.base import Port, Worker
from stretto.workers.control import (
    CALLER_ASLEEP,
    HEAD,
    PLAIN_STORES_PUBLISH,
    SLEEPS_AT_ONCE,
    WORKER_ASLEEP,
    Bell,
    Clock,
    fence,
)
from stretto.workers.mail import Disconnected

SPIN_SHARE, LONGEST_SPIN_SECONDS = 0.25, 5e-3
"""Where there is a core for everybody, who waits looks again and again for this share of the time that it has worked.

Waking somebody up takes 0.05 ms on an idle machine and often 1 ms on one that is shared with others; and shares of work
that are equal on average seldom end together.
"""


def spin_limit(least_seconds: float, worked_seconds: float) -> float:
    """Return for how long to look before sleeping, after so much work; at least `least_seconds`, none if that is 0."""
    if not least_seconds:
        return 0.0
    return max(least_seconds, min(SPIN_SHARE * worked_seconds, LONGEST_SPIN_SECONDS))


LONGEST_SLEEP_SECONDS = 0.25
"""A sleep ends at least this often, so that even a wake-up that got lost delays and never hangs."""


class Waiter:
    """Waits until a condition holds that one of the workers brings about.

    `spin_seconds` is how long it looks at the shared words before it sleeps; 0 where no core is spare.
    """

    def __init__(self, bell: Bell, spin_seconds: float, clock: Clock | None = None) -> None:
        self.bell = bell
        self.spin_seconds = spin_seconds
        self._clock = clock or Clock()
        self._registered: dict[int, Worker] = {}
        self._poller = select.poll()
        self._poller.register(bell.fd, select.POLLIN)

    def watch(self, worker: Worker) -> None:
        """Hear of this worker from now on."""
        for fd in worker.watched():
            self._registered[fd] = worker
            self._poller.register(fd, select.POLLIN)

    def forget(self, worker: Worker) -> None:
        """Stop watching; to be called before the worker's descriptors are closed."""
        for fd in [fd for fd, owner in self._registered.items() if owner is worker]:
            del self._registered[fd]
            self._poller.unregister(fd)

    def spin(self, ready: Callable[[], bool]) -> bool:
        """Look for a short while whether `ready()`; return whether it came true."""
        if not PLAIN_STORES_PUBLISH:
            return False
        if ready():
            return True
        if self.spin_seconds:
            until = time.perf_counter() + self.spin_seconds
            while time.perf_counter() < until:
                for _ in range(10):
                    if ready():
                        return True
        return False

    def sleep(self, workers: Sequence[Worker], ready: Callable[[], bool], seconds: float) -> list[Worker]:
        """Sleep until something happens or `seconds` have passed; return the workers that need a look."""
        unsent = []
        for worker in workers:
            worker.words[CALLER_ASLEEP] = True
            if worker.unsent_fd >= 0:
                unsent.append(worker.unsent_fd)
                self._poller.modify(worker.unsent_fd, select.POLLIN | select.POLLOUT)
        fence()
        try:
            if PLAIN_STORES_PUBLISH and ready():
                return []
            events = self._clock.poll(self._poller, max(0.0, min(seconds, LONGEST_SLEEP_SECONDS)))
        finally:
            for worker in workers:
                worker.words[CALLER_ASLEEP] = False
            for fd in unsent:
                self._poller.modify(fd, select.POLLIN)
        self.bell.clear()
        if not events:  # not every system has a handle of a process that tells of its end
            return list(workers)
        return list({id(w): w for fd, _ in events if (w := self._registered.get(fd)) is not None}.values())


def wait_for_requests(spin_seconds: float) -> Callable[[Port, int], int]:
    """Return how a worker waits for requests: a short spin where a core is spare, then a sleep.

    Raises:
        Disconnected: if the caller has gone, and with it the other end of the worker's bell.
    """
    clock, began = time.perf_counter, time.perf_counter()

    def wait(port: Port, answered: int) -> int:
        nonlocal began
        made = spin(port.words, answered) or sleep(port, answered)
        began = clock()
        return made

    def spin(words: memoryview, answered: int) -> int:
        if spin_seconds and PLAIN_STORES_PUBLISH and not words[SLEEPS_AT_ONCE]:
            now = clock()
            until = now + spin_limit(spin_seconds, now - began)
            while clock() < until:
                for _ in range(20):
                    if words[HEAD] > answered:
                        return int(words[HEAD])
        return 0

    def sleep(port: Port, answered: int) -> int:
        words = port.words
        poller = select.poll()
        poller.register(port.bell.fd, select.POLLIN)
        while True:
            words[WORKER_ASLEEP] = 1
            fence()
            if not PLAIN_STORES_PUBLISH or words[HEAD] == answered:
                for _, event in poller.poll(LONGEST_SLEEP_SECONDS * 1000):
                    if event & (select.POLLHUP | select.POLLERR):
                        raise Disconnected("the caller has gone")
                port.bell.clear()
            words[WORKER_ASLEEP] = 0
            if words[HEAD] > answered:
                return int(words[HEAD])

    return wait
