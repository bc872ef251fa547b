"""Serving: the loop in which a worker answers requests, one after the other."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable

from stretto import trace
from stretto.workers.base import Failure, Port, Reply, Service, Spans, Start, Stop
from stretto.workers.control import MESSAGE, RING
from stretto.workers.garbage import Garbage
from stretto.workers.mail import dump

Waiting = Callable[[Port, int], int]
"""Wait until more than the given number of requests were made, and return how many were."""


class Abandoned(BaseException):
    """Raised in a thread that its caller has given up, as soon as its code comes back."""


class Host:
    """What runs in a worker before it has a service, and around it."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.service: Service | None = None
        self.stopped = False

    def answer(self, number: int, code: int) -> None:
        """Do what a request says, and send the answer if there is anything to say."""
        port = self.port
        port.serving = number
        began = time.monotonic_ns() if port.tracing else 0
        name = "signal"
        try:
            if code == MESSAGE:
                message = port.mail.receive(number)
                name = type(message).__name__
                value = self._handle(message)
            else:
                assert self.service is not None
                value = self.service.signal(code)
            if began:  # before the answer: after it, the caller may look no more
                self._send_span(name, began)
            if code == MESSAGE or value is not None:
                port.send(Reply(number, value), number)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, the caller is told
            self.port.send(self.failure(number, error), number)

    def failure(self, number: int, error: BaseException) -> Failure:
        """Return what a request raised as its answer; Ctrl-C goes on where it is the caller's."""
        # A world that calls sys.exit() has failed; it must not end the worker, or it would be tried again.
        if self.port.interruptible and isinstance(error, KeyboardInterrupt):
            raise error
        return _failure(number, error, self.port)

    def _send_span(self, name: str, began: int) -> None:
        log = trace.Trace()
        log.add(name, began)
        self.port.send(Spans(log.spans))

    def _handle(self, message: object) -> object:
        match message:
            case Start(factory):
                self.service = factory(self.port)
            case Stop():
                self.stopped = True
                if self.service is not None:
                    self.service.close()
            case _:
                assert self.service is not None
                return self.service.handle(message)
        return None


def serve(host: Host, wait: Waiting, garbage: Garbage | None = None) -> None:
    """Answer requests until told to stop, or until `wait` raises because the caller has gone.

    A process that does nothing else collects its `garbage` between two waits.
    """
    port = host.port
    words, capacity = port.words, len(port.words) - RING
    answered = 0
    while not host.stopped:
        made = wait(port, answered)
        while answered < made:
            code = words[RING + answered % capacity]
            answered += 1
            host.answer(answered, code)
            port.finished(answered)
            if answered == 1 and garbage is not None:
                garbage.settle()
        if garbage is not None:
            garbage.collect_some()


def _failure(number: int, error: BaseException, port: Port) -> Failure:
    """Describe an exception so that it survives the way to the caller.

    What is no `Exception` arrives as text: a world's `sys.exit()` must not end the caller's program without a word.
    """
    text = "".join(traceback.format_exception(error))
    if not isinstance(error, Exception):
        return Failure(number, port.place(), text, None)
    return Failure(number, port.place(), text, _portable(error) if port.pickles else error)


def _portable(error: Exception) -> bytes | None:
    """Pickle an exception if it comes back as what it was; many take other arguments than they keep."""
    try:
        data = dump(error)
        same = type(pickle.loads(data)) is type(error)
    except Exception:  # noqa: BLE001  anything may happen in a foreign __reduce__ or __init__; text always arrives
        return None
    return data if same else None
