"""Waiting for many workers at once, with a deadline and an eye on their lives."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence

from stretto.workers.base import Worker
from stretto.workers.control import CALLER_ASLEEP, PLAIN_STORES_PUBLISH, Bell, fence

LONGEST_SLEEP_SECONDS = 0.25
"""A sleep ends at least this often, so that even a wake-up that got lost delays and never hangs."""

_LIFE_CHECK_SECONDS = 0.05
"""How often lives are looked at on systems whose processes have no handle to wait on."""


class Waiter:
    """Waits until a condition holds that one of the workers brings about.

    `spin_seconds` is how long it looks at the shared words before it sleeps; 0 where no core is spare.
    """

    def __init__(self, bell: Bell, spin_seconds: float) -> None:
        self.bell = bell
        self.spin_seconds = spin_seconds
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

    def forget_all(self) -> None:
        """Let go of all workers, and with them of the memory that they share; their descriptors may be closed by now."""
        self._registered.clear()
        self._poller = select.poll()

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
            worker.words[CALLER_ASLEEP] = 1
            if worker.unsent_fd >= 0:
                unsent.append(worker.unsent_fd)
                self._poller.modify(worker.unsent_fd, select.POLLIN | select.POLLOUT)
        fence()
        try:
            if PLAIN_STORES_PUBLISH and ready():
                return []
            limit = min(seconds, LONGEST_SLEEP_SECONDS)
            if any(worker.pid and len(worker.watched()) < 2 for worker in workers):
                limit = min(limit, _LIFE_CHECK_SECONDS)
            events = self._poller.poll(max(0.0, limit) * 1000)
        finally:
            for worker in workers:
                worker.words[CALLER_ASLEEP] = 0
            for fd in unsent:
                self._poller.modify(fd, select.POLLIN)
        self.bell.clear()
        if not events and limit == _LIFE_CHECK_SECONDS:
            return list(workers)
        return list({id(w): w for fd, _ in events if (w := self._registered.get(fd)) is not None}.values())
