"""A worker that is the caller itself: requests are served when the caller says `work()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.workers.arena import Arena
from stretto.workers.base import Port, Service, Start, Worker, _Host
from stretto.workers.control import DONE, MAIL, MESSAGE, NO_BELL, RING, control_bytes
from stretto.workers.mail import LocalMail


class InlineWorker(Worker):
    """Runs its service in the caller's thread. It cannot die apart from the caller, nor be killed."""

    def __init__(self, index: int, capacity: int, arena: Arena, factory: Callable[[Port], Service]) -> None:
        words = memoryview(bytearray(control_bytes(capacity))).cast("q")
        super().__init__(index, words, capacity, NO_BELL)
        self._mail = LocalMail()
        self.port = Port(index, words, capacity, self._mail, NO_BELL, NO_BELL, arena)
        self.port.interruptible = True
        self._host = _Host(self.port)
        self._answered = 0
        self.working = False
        self.send(Start(factory))

    def send(self, message: object, *, by_value: bool = True) -> int:
        self._mail.post(message, self.made + 1)
        return self.signal(MESSAGE)

    def signal(self, code: int) -> int:
        self.words[RING + self.made % self.capacity] = code
        self.made += 1
        return self.made

    def work(self) -> None:
        host, words = self._host, self.words
        self.working = True
        try:
            while self._answered < self.made:
                self._answered += 1
                host.answer(self._answered, words[RING + (self._answered - 1) % self.capacity])
        finally:
            # One that was interrupted counts as answered, or whoever waits for it would wait for ever.
            words[DONE] = self._answered
            self.working = False

    def work_once(self) -> bool:
        """Serve the oldest request; return whether there was one."""
        if self._answered == self.made:
            return False
        made, self.made = self.made, self._answered + 1
        try:
            self.work()
        finally:
            self.made = made
        return True

    def collect(self) -> list[Any]:
        self.read = int(self.words[MAIL])
        return self._mail.collect()

    def forget_requests(self) -> None:
        """Drop what was requested and not done yet."""
        self._answered = self.words[DONE] = self.made

    def close(self, timeout: float) -> None:
        if not self._stop:
            self.forget_requests()
        self.stop()
        self.work()
