"""A worker that is the caller itself: requests are served when the caller says `work()`.

Such a worker cannot be ended. A thread looks at it instead, and shows the stack of code that runs past its limit; a
request pays nothing for that but a word around its work.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

from stretto import trace
from stretto.budget import NativeThreads
from stretto.workers.arena import Arena
from stretto.workers.base import Factory, Port, Service, Start, Worker
from stretto.workers.control import DONE, NO_BELL, RING, private_words
from stretto.workers.mail import LocalMail
from stretto.workers.serving import Host

_LOOK_SECONDS = 0.25


class InlineWorker(Worker):
    """Runs its service in the caller's thread. It cannot die apart from the caller, nor be killed.

    `working` is the thread that is at work for it, 0 if there is none; meanwhile `native` caps the threads of libraries.
    """

    def __init__(
        self, index: int, capacity: int, arena: Arena, factory: Factory, native: NativeThreads | None = None
    ) -> None:
        super().__init__(index, private_words(capacity), LocalMail(), NO_BELL)
        self.port = Port(index, self.words, self._mail, NO_BELL, NO_BELL, arena)
        self.port.interruptible = True
        self._host, self._native = Host(self.port), native or NativeThreads()
        self._answered = 0
        self.working = 0
        self._ended = threading.Event()
        self.send(Start(factory))

    def signal(self, code: int) -> int:
        self.words[RING + self.made % self.capacity] = code
        self.made += 1
        return self.made

    @property
    def service(self) -> Service:
        """What it serves, once it was started."""
        assert self._host.service is not None
        return self._host.service

    def do(self, function: Callable[[Any], object], argument: Any) -> Any:
        """Let its service do something now, and return what it gives; what it raises is told as in any other answer."""
        if self._answered < self.made:  # Ctrl-C has left something
            self.work()
        tracing = trace.active
        began = 0 if tracing is None else time.monotonic_ns()
        self.made = self._answered = number = self.made + 1
        raised = self._native.cap()
        self.working = get_ident()
        try:
            return function(argument)
        except BaseException as error:  # noqa: BLE001  whatever it is, its place is told
            failure = self._host.failure(number, error)
        finally:
            self.words[DONE] = number
            self.working = 0
            if raised:
                self._native.restore(raised)
            if tracing is not None:
                tracing.add("signal", began)
        raise failure.error()

    def work(self) -> None:
        host, words = self._host, self.words
        raised = self._native.cap()
        self.working = get_ident()
        try:
            while self._answered < self.made:
                self._answered += 1
                host.answer(self._answered, words[RING + (self._answered - 1) % self.capacity])
        finally:
            # One that was interrupted counts as answered, or whoever waits for it would wait for ever.
            words[DONE] = self._answered
            self.working = 0
            self._native.restore(raised)

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

    def watch(self, limit: Callable[[], float | None], remedy: str) -> None:
        """From now to its end, write its stack to stderr, once, if it does not move for so many seconds (`None`: never)."""
        arguments = weakref.ref(self), self._ended, limit, remedy
        threading.Thread(target=_look_until_its_end, args=arguments, name="stretto-watchdog", daemon=True).start()

    def kill(self) -> None:
        self._ended.set()

    def close(self, timeout: float) -> None:
        self.kill()
        if not self._stop:
            self.forget_requests()
        self.stop()
        self.work()


def _look_until_its_end(
    reference: weakref.ref[InlineWorker], ended: threading.Event, limit: Callable[[], float | None], remedy: str
) -> None:
    seen, since, shown = (0, 0, 0), time.monotonic(), False
    while not ended.wait(_LOOK_SECONDS) and (worker := reference()) is not None:
        now, seconds = time.monotonic(), limit()
        if worker.progress != seen or not worker.working:
            seen, since, shown = worker.progress, now, False
        elif seconds is not None and now - since > seconds and not shown:
            shown = True
            _dump(worker, seconds, remedy)
        del worker  # or this thread would keep it, and the memory that it shares, until it looks again


def _dump(worker: InlineWorker, limit: float, remedy: str) -> None:
    frame = sys._current_frames().get(worker.working)  # noqa: SLF001  there is no public way
    text = "(unknown)\n" if frame is None else "".join(traceback.format_stack(frame))
    sys.stderr.write(
        f"stretto: no answer for {limit:g} s {worker.port.place()}; it runs in the caller's process and cannot be ended "
        f"({remedy} would allow that). Its Python stack is:\n{text}"
    )
    sys.stderr.flush()
