"""A worker that is the caller itself: requests are served when the caller says `work()`."""

from __future__ import annotations

import threading

from stretto.workers.arena import Arena
from stretto.workers.base import Factory, Port, Start, Worker
from stretto.workers.control import DONE, NO_BELL, RING, private_words
from stretto.workers.mail import LocalMail
from stretto.workers.serving import Host


class InlineWorker(Worker):
    """Runs its service in the caller's thread. It cannot die apart from the caller, nor be killed."""

    def __init__(self, index: int, capacity: int, arena: Arena, factory: Factory) -> None:
        super().__init__(index, private_words(capacity), LocalMail(), NO_BELL)
        self.port = Port(index, self.words, self._mail, NO_BELL, NO_BELL, arena)
        self.port.interruptible = True
        self._host = Host(self.port)
        self._answered = 0
        self.working = False
        self.ended = threading.Event()
        self.send(Start(factory))

    def signal(self, code: int) -> int:
        self.words[RING + self.made % self.capacity] = code
        self.made += 1
        return self.made

    def do(self, code: int) -> object:
        """Do what a signal says now, with nothing else requested, and return what it has to tell; a failure goes by mail."""
        self.made = self._answered = number = self.made + 1
        host, self.port.serving = self._host, number
        self.working = True
        try:
            assert host.service is not None
            return host.service.signal(code)
        except BaseException as error:  # noqa: BLE001  it is told as any other answer
            host.tell_failure(number, error)
            return None
        finally:
            self.words[DONE] = number
            self.working = False

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

    def forget_requests(self) -> None:
        """Drop what was requested and not done yet."""
        self._answered = self.words[DONE] = self.made

    def kill(self) -> None:
        self.ended.set()

    def close(self, timeout: float) -> None:
        self.kill()
        if not self._stop:
            self.forget_requests()
        self.stop()
        self.work()
