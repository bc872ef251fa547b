"""A worker that has messages alone: it shares no memory with its caller, as one on another machine would not.

Both sides keep the control words as memory of their own. What the worker writes there (how far it is, what it is at)
follows its answers as a frame, and, while it is long at one thing, a few times a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from stretto.workers.arena import Arena
from stretto.workers.base import Port
from stretto.workers.control import BEAT, DONE, MESSAGE, NO_BELL, NOTE, POSITION, RING, TRACING, Bell, private_words
from stretto.workers.mail import Sent, SocketMail
from stretto.workers.process import ProcessWorker
from stretto.workers.serving import Waiting

_TRACE, _TRACE_NO_MORE = -2, -3
"""Codes that are no requests: what the caller has written into its word `TRACING`."""

_WORKERS_WORDS = (DONE, POSITION, BEAT, NOTE)
"""The words of the worker that its caller reads."""


@dataclass(frozen=True, slots=True)
class _Words(Sent):
    """What a worker has written into its words."""

    values: tuple[int, ...]


class MessageWorker(ProcessWorker):
    """A process that is reached through a socket and nothing else."""

    def _share(
        self, capacity: int, arena: Arena, caller_bell: Bell, theirs: contextlib.ExitStack
    ) -> tuple[memoryview, Bell, dict[str, int]]:
        self._frames: list[Any] = []  # those that have arrived and were not collected yet
        return private_words(capacity), NO_BELL, {}

    def post(self, data: bytes, code: int = MESSAGE) -> int:
        with self._unbroken:
            # Before it is sent: it may be answered before the end that an interruption brings upon the worker.
            self.made += 1
            self._mail.post(data, code)
        return self.made

    def signal(self, code: int) -> int:
        return self.post(b"", code)

    def trace(self, on: bool) -> None:
        if bool(self.words[TRACING]) != on:
            with self._unbroken:
                super().trace(on)
                self._mail.post(b"", _TRACE if on else _TRACE_NO_MORE)

    def exchange(self) -> bool:
        arrived = super().exchange()
        with self._unbroken:
            for frame in self._mail.frames.take():
                if isinstance(frame, _Words):
                    for where, value in zip(_WORKERS_WORDS, frame.values, strict=True):
                        self.words[where] = value
                else:
                    self._frames.append(frame)
        return arrived

    @property
    def has_mail(self) -> bool:
        return bool(self._frames)

    def collect(self) -> list[Any]:
        self.exchange()
        frames, self._frames = self._frames, []
        return frames


def message_port(index: int, mail: SocketMail, pulse_seconds: float) -> tuple[Port, Waiting]:
    """Return a worker's end of a connection that carries messages alone, and how to wait for requests there."""
    port = _MessagePort(index, private_words(1), mail, NO_BELL, NO_BELL, Arena(-1))
    mail.holds_answers = True  # how far the worker is follows at once
    threading.Thread(target=port.pulse, args=(pulse_seconds,), name="stretto-pulse", daemon=True).start()

    def wait(port: Port, answered: int) -> int:
        while (code := mail.next_code()) in (_TRACE, _TRACE_NO_MORE):
            port.words[TRACING] = code == _TRACE
        port.words[RING] = code
        return answered + 1

    return port, wait


class _MessagePort(Port):
    pickles = True
    shares_memory = False

    def finished(self, number: int) -> None:
        self.words[DONE] = number
        self._send_words()

    def _send_words(self) -> None:
        with self._lock:  # what is sent later must not be older
            self.send(_Words(tuple(self.words[where] for where in _WORKERS_WORDS)))

    def pulse(self, seconds: float) -> None:
        """Tell every so many seconds what the worker is at, if that changes, until the caller has gone."""
        before = self.words[POSITION], self.words[BEAT]
        with contextlib.suppress(OSError):
            while True:
                time.sleep(seconds)
                now = self.words[POSITION], self.words[BEAT]
                if now != before and self.serving > self.words[DONE]:
                    self._send_words()
                before = now
