"""A worker that has messages alone: it shares no memory with its caller, as one on another machine would not.

Both sides keep the control words as memory of their own. What the worker writes there (how far it is, what it is at)
follows its answers as a frame, and, while it is long at one thing, a few times a second.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from dataclasses import dataclass
from typing import Any

from stretto.workers.arena import Arena
from stretto.workers.base import Port, Waiting
from stretto.workers.control import BEAT, DONE, MESSAGE, NO_BELL, NOTE, POSITION, RING, TRACING, Bell, control_bytes
from stretto.workers.mail import Sent, SocketMail, dump
from stretto.workers.process import ProcessWorker

_PULSE_SECONDS = 0.1
"""How often a worker that is long at one thing tells what it is at."""

_REQUEST, _SIGNAL, _WORDS = 0, 1, 2
"""What a frame to a worker is: a message, a signal, or words that the caller has written."""

_TOLD = (DONE, POSITION, BEAT, NOTE)
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
        return memoryview(bytearray(control_bytes(capacity))).cast("q"), Bell(-1, -1), {}

    def post(self, data: bytes) -> int:
        return self._post(data, _REQUEST)

    def signal(self, code: int) -> int:
        return self._post(dump(code), _SIGNAL)

    def _post(self, data: bytes, kind: int) -> int:
        try:
            # Before it is sent: it may be answered before the end that an interruption brings upon the worker.
            self.made += 1
            self._mail.post(data, kind)
        except BaseException:
            self._cut()
            raise
        return self.made

    def trace(self, on: bool) -> None:
        if bool(self.words[TRACING]) != on:
            super().trace(on)
            self._mail.post(dump(on), _WORDS)

    def exchange(self) -> bool:
        try:
            arrived = super().exchange()
            for words in self._mail.take(_Words):
                for where, value in zip(_TOLD, words.values, strict=True):
                    self.words[where] = value
        except BaseException:
            self._cut()
            raise
        return arrived

    @property
    def has_mail(self) -> bool:
        return self._mail.waiting

    def collect(self) -> list[Any]:
        self.exchange()
        return self._mail.take(object)  # not what arrives meanwhile, which may be words


def message_port(index: int, mail: SocketMail) -> tuple[Port, Waiting]:
    """Return a worker's end of a connection that carries messages alone, and how to wait for requests there."""
    words = memoryview(bytearray(control_bytes(1))).cast("q")
    inbox = _Inbox(mail)
    port = _MessagePort(index, words, 1, inbox, NO_BELL, NO_BELL, Arena(-1))
    threading.Thread(target=port.pulse, name="stretto-pulse", daemon=True).start()

    def wait(port: Port, answered: int) -> int:
        while True:
            kind, data = mail.receive_bytes()
            if kind == _WORDS:
                port.words[TRACING] = pickle.loads(data)
                continue
            port.words[RING], inbox.message = (MESSAGE, data) if kind == _REQUEST else (pickle.loads(data), None)
            return answered + 1

    return port, wait


class _Inbox:
    """A worker's mail, of which the message of the present request was read already."""

    def __init__(self, mail: SocketMail) -> None:
        self.send = mail.send
        self.message: bytearray | None = None

    def receive(self, number: int) -> Any:
        assert self.message is not None
        return pickle.loads(self.message)  # what this raises is the answer to the request


class _MessagePort(Port):
    pickles = True
    shares_memory = False

    def finished(self, number: int) -> None:
        self.words[DONE] = number
        self._tell_words()

    def _tell_words(self) -> None:
        with self._lock:  # what is told later must not be older
            self.send(_Words(tuple(self.words[where] for where in _TOLD)))

    def pulse(self) -> None:
        """Tell from time to time what the worker is at, if that changes, until the caller has gone."""
        told = self.words[POSITION], self.words[BEAT]
        with contextlib.suppress(OSError):
            while True:
                time.sleep(_PULSE_SECONDS)
                now = self.words[POSITION], self.words[BEAT]
                if now != told and self.serving > self.words[DONE]:
                    self._tell_words()
                told = now
