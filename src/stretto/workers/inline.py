"""A worker that is the caller itself: requests are served when the caller says `work()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.workers.arena import Arena
from stretto.workers.base import Port, Service, Start, Worker, _Host
from stretto.workers.control import DONE, MAIL, MESSAGE, RING, Bell, control_bytes
from stretto.workers.mail import LocalMail

_NO_BELL = Bell(-1, -1)


class InlineWorker(Worker):
    """Runs its service in the caller's thread. It cannot die apart from the caller, nor be killed."""

    def __init__(self, index: int, capacity: int, arena: Arena, factory: Callable[[Port], Service]) -> None:
        words = memoryview(bytearray(control_bytes(capacity))).cast("q")
        super().__init__(index, words, capacity, _NO_BELL)
        self._mail, theirs = LocalMail.pair()
        self._host = _Host(Port(index, words, capacity, theirs, _NO_BELL, _NO_BELL, arena))
        self._answered = 0
        self.send(Start(factory))

    def send(self, message: object, *, by_value: bool = True) -> int:
        self._mail.send(message)
        return self.signal(MESSAGE)

    def signal(self, code: int) -> int:
        self.words[RING + self.made % self.capacity] = code
        self.made += 1
        return self.made

    def work(self) -> None:
        host, words = self._host, self.words
        while self._answered < self.made:
            self._answered += 1
            host.answer(self._answered, words[RING + (self._answered - 1) % self.capacity])
            words[DONE] = self._answered

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
        sent = int(self.words[MAIL])
        frames = [self._mail.receive() for _ in range(sent - self.read)]
        self.read = sent
        return frames

    def close(self, timeout: float) -> None:
        if self._host.service is not None and not self._host.stopped:
            self._host.stopped = True
            self._host.service.close()
