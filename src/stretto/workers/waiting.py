"""Waiting, on both sides: a short look where a core is spare, then a sleep that a bell, mail or a death ends."""

from __future__ import annotations

import math
import os
import select
import threading
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
from stretto.workers.shared_core import SharedCore

SPIN_SHARE, LONGEST_SPIN_SECONDS = 0.25, 5e-3
"""Where there is a core for everybody, who waits looks again and again for this share of the time that it has worked.

Waking somebody up takes 0.05 ms on an idle machine and often 1 ms on one that is shared with others; and shares of work
that are equal on average seldom end together.
"""

MOST_CREDIT, PRICE = 8, 4
"""A spin that pays earns one, up to the first number, and one that does not costs the second.

Who has none left sleeps at once. On idle cores some waits are long as well, because episodes end in one process and not
in another: these are few, and must not end the spinning.
"""

FEWEST_GOOD, MOST_GOOD = 16, 2_048
"""Who sleeps at once spins again after so many waits in a row that were short enough.

The number doubles each time that the credit is used up, to the larger one at most, and falls by one with each spin that pays.
"""

LONG_WAIT_SECONDS = 1e-4
"""After a wait this long, whoever waits looks whether it shares its core with the one that it waits for."""

WAITING = os.environ.get("STRETTO_WAITING", "adaptive")
"""For measurements: `spin` and `sleep` always do that; `adaptive` does what pays."""


class Spin:
    """Says for how long to look before sleeping: a bet on an answer that comes soon.

    It pays on idle cores. Where other programs want the cores, whoever is waited for does not get one while somebody
    looks; so bets that are lost end the looking, until waits are short again.
    """

    def __init__(self, least_seconds: float, after_long_wait: Callable[[], None] | None = None) -> None:
        self._least = 0.0 if WAITING == "sleep" else least_seconds
        self._after_long_wait = after_long_wait
        self._credit, self._patience, self._good = MOST_CREDIT, FEWEST_GOOD // 2, 0
        self._since, self._most = 0.0, 0.0
        # When the last wait ended; 0 while one is under way. What it was worth is settled in the next: then there is time.
        self.ended = math.inf

    def begin(self, now: float, worked_seconds: float) -> float:
        """Begin a wait, after so much work; return until when to look."""
        if self.ended < math.inf:
            took = self.ended - self._since
            self._settle(took <= self._most)
            if took > LONG_WAIT_SECONDS and self._after_long_wait is not None:
                self._after_long_wait()
        most = max(self._least, min(SPIN_SHARE * worked_seconds, LONGEST_SPIN_SECONDS)) if self._least else 0.0
        self._since, self._most, self.ended = now, most, 0.0
        return now + most if self._credit > 0 or WAITING == "spin" else now

    def _settle(self, short: bool) -> None:
        """Take note of whether the last wait was short enough, in whichever way it was spent."""
        if self._credit > 0:
            if short:
                self._credit = min(self._credit + 1, MOST_CREDIT)
                self._patience = max(self._patience - 1, FEWEST_GOOD // 2)
                return
            self._credit -= PRICE
            if self._credit <= 0:
                self._patience, self._good = min(2 * self._patience, MOST_GOOD), 0
        elif short:
            self._good += 1
            if self._good >= self._patience:
                self._credit = PRICE
        else:
            self._good = 0


LONGEST_SLEEP_SECONDS = 0.25
"""A sleep ends at least this often, so that even a wake-up that got lost delays and never hangs."""


class Waiter:
    """Waits until a condition holds that one of the workers brings about.

    It looks at the shared words for `spin_seconds` before it sleeps, if that pays; 0 where no core is spare.
    """

    def __init__(self, bell: Bell, spin_seconds: float, clock: Clock | None = None) -> None:
        self.bell, self.bet = bell, Spin(spin_seconds, self._share_no_core)
        self._clock, self._shared_core = clock or Clock(), SharedCore()
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

    def _share_no_core(self) -> None:
        workers = {worker.pid for worker in self._registered.values() if worker.pid is not None}
        self._shared_core.leave(workers, [threading.get_native_id()])

    def spin(self, ready: Callable[[], bool]) -> bool:
        """Look for a short while whether `ready()`; return whether it came true."""
        if not PLAIN_STORES_PUBLISH:
            return False
        if ready():
            return True
        if self.bet.ended:  # else it has looked already
            until = self.bet.begin(time.perf_counter(), 0.0)
            while time.perf_counter() < until:
                for _ in range(10):
                    if ready():
                        return True
        return False

    def end(self) -> None:
        """Take note that what was waited for is there."""
        if not self.bet.ended:
            self.bet.ended = time.perf_counter()

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


def wait_for_requests(
    spin_seconds: float, after_long_wait: Callable[[], None] | None = None
) -> Callable[[Port, int], int]:
    """Return how a worker waits for requests: a short spin where a core is spare, then a sleep.

    Raises:
        Disconnected: if the caller has gone, and with it the other end of the worker's bell.
    """
    clock, began, bet = time.perf_counter, time.perf_counter(), Spin(spin_seconds, after_long_wait)

    def wait(port: Port, answered: int) -> int:
        nonlocal began
        words, since = port.words, clock()
        if words[HEAD] > answered:
            began = since
            return int(words[HEAD])
        if words[SLEEPS_AT_ONCE] or not PLAIN_STORES_PUBLISH:
            made = sleep(port, answered)
            began = clock()
            return made
        made = spin(words, answered, bet.begin(since, since - began)) or sleep(port, answered)
        began = bet.ended = clock()
        return made

    def spin(words: memoryview, answered: int, until: float) -> int:
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
