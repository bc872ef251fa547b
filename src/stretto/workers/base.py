"""Worker: something that serves numbered requests in order; and the loop that serves them.

A request is a *message* (any object) or a *signal* (a small number that says what to do with shared arrays). Both
are answered in order. A message always has a reply; a signal has one only if there is something to say.
"""

from __future__ import annotations

import pickle
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from stretto import trace
from stretto.errors import Place, WorldFailed
from stretto.workers.arena import Arena
from stretto.workers.control import (
    CALLER_ASLEEP,
    DONE,
    HEAD,
    MAIL,
    MESSAGE,
    PLAIN_STORES_PUBLISH,
    RING,
    TRACING,
    WORKER_ASLEEP,
    Bell,
    fence,
)
from stretto.workers.mail import Mail


class Service(Protocol):
    """What a worker runs. It knows nothing of where it runs."""

    def handle(self, message: Any) -> object:
        """Answer a message."""

    def signal(self, code: int) -> object:
        """Do what `code` says; `None` means that nothing need be told but that it is done."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a worker: what to serve. `factory` is called with the worker's `Port`."""

    factory: Callable[[Port], Service]


@dataclass(frozen=True, slots=True)
class Stop:
    """The last message: close the service and end."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to request `number`."""

    number: int
    value: object


@dataclass(frozen=True, slots=True)
class Failure:
    """Request `number` raised: where, the traceback as text, and the exception itself where it can travel."""

    number: int
    place: Place
    text: str
    exception: BaseException | bytes | None

    def error(self) -> BaseException:
        """Return what the caller should raise: the original type if there is one, always with place and traceback."""
        original = pickle.loads(self.exception) if isinstance(self.exception, bytes) else self.exception
        told = WorldFailed(f"{self.place}:\n{self.text.rstrip()}", self.place, self.text)
        if original is None:
            return told
        if isinstance(self.exception, bytes):  # a local exception carries its traceback itself
            original.add_note(f"{self.place}; remote traceback:\n{self.text.rstrip()}")
        else:
            original.add_note(str(self.place))
        original.__cause__ = told if isinstance(self.exception, bytes) else original.__cause__
        original.place = self.place  # type: ignore[attr-defined]
        return original


@dataclass(frozen=True, slots=True)
class Spans:
    """What a worker traced while it served a request."""

    spans: list[trace.Span]


@dataclass(frozen=True, slots=True)
class Output:
    """Something that code in a worker printed, logged or warned of."""

    kind: str
    content: Any
    slot: int | None


class Port:
    """A worker's end of everything that it shares with its caller."""

    def __init__(
        self, index: int, words: memoryview, capacity: int, mail: Mail, bell: Bell, caller_bell: Bell, arena: Arena
    ) -> None:
        self.index = index
        self.words = words
        self.capacity = capacity
        self.mail = mail
        self.bell = bell
        self.caller_bell = caller_bell
        self.arena = arena
        self.place: Callable[[], Place] = lambda: Place("starting", worker=index)
        self.crosses_processes = False
        self.muted = False  # while steps are replayed, what they print was printed before
        self._sent = 0
        self._lock = threading.RLock()

    def send(self, value: object) -> None:
        """Send a frame; it counts in `MAIL`, so that the caller knows how many to read."""
        with self._lock:  # a world's own threads may print
            self.mail.send(value)
            self._sent += 1
            self.words[MAIL] = self._sent

    def finished(self, number: int) -> None:
        """Publish that requests up to `number` are answered."""
        words = self.words
        words[DONE] = number
        if PLAIN_STORES_PUBLISH:
            fence()
            if not words[CALLER_ASLEEP]:
                return
        self.caller_bell.ring()


Waiting = Callable[[Port, int], int]
"""Wait until more than the given number of requests were made, and return how many were."""


class _Host:
    """What runs in a worker before it has a service, and around it."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.service: Service | None = None
        self.stopped = False

    def answer(self, number: int, code: int) -> None:
        port = self.port
        began = time.monotonic_ns() if port.words[TRACING] else 0
        name = "signal"
        try:
            if code == MESSAGE:
                message = port.mail.receive()
                name = type(message).__name__
                port.send(Reply(number, self._handle(message)))
            else:
                assert self.service is not None
                value = self.service.signal(code)
                if value is not None:
                    port.send(Reply(number, value))
        except Exception as error:
            port.send(failure(number, error, port))
        except (SystemExit, KeyboardInterrupt) as error:
            # A world that calls sys.exit() has failed; it must not end the worker, or it would be tried again.
            port.send(failure(number, error, port))
        if began:
            log = trace.Trace()
            log.add(name, began)
            port.send(Spans(log.spans))

    def _handle(self, message: object) -> object:
        match message:
            case Start(factory):
                self.service = factory(self.port)
                return self.service.handle(message)
            case Stop():
                self.stopped = True
                if self.service is not None:
                    self.service.close()
                return None
            case _:
                assert self.service is not None
                return self.service.handle(message)


def serve(port: Port, wait: Waiting) -> None:
    """Answer requests until told to stop, or until `wait` raises because the caller has gone."""
    host = _Host(port)
    words, capacity = port.words, port.capacity
    answered = 0
    while not host.stopped:
        made = wait(port, answered)
        while answered < made:
            code = words[RING + answered % capacity]
            answered += 1
            host.answer(answered, code)
            port.finished(answered)


def failure(number: int, error: BaseException, port: Port) -> Failure:
    """Describe an exception so that it survives the way to the caller."""
    text = "".join(traceback.format_exception(error))
    if not port.crosses_processes:
        return Failure(number, port.place(), text, error)
    return Failure(number, port.place(), text, _portable(error))


def _portable(error: BaseException) -> bytes | None:
    """Pickle an exception if it comes back as what it was; many take other arguments than they keep."""
    try:
        data = pickle.dumps(error)
        same = type(pickle.loads(data)) is type(error)
    except Exception:  # anything may happen in a foreign __reduce__ or __init__; text always arrives
        return None
    return data if same else None


class Worker:
    """The caller's end of a worker. Subclasses say how it is started, watched and ended."""

    def __init__(self, index: int, words: memoryview, capacity: int, bell: Bell) -> None:
        self.index = index
        self.words = words
        self.capacity = capacity
        self.bell = bell
        self.made = 0
        self.read = 0

    @property
    def pid(self) -> int | None:
        """The process that it runs in, if that is not the caller's."""
        return None

    @property
    def done(self) -> int:
        """The number of the last request that it has answered."""
        return int(self.words[DONE])

    def send(self, message: object, *, by_value: bool = True) -> int:
        """Make a request that a message describes; return its number."""
        raise NotImplementedError

    def signal(self, code: int) -> int:
        """Make a request that a number describes; return its number."""
        words = self.words
        made = self.made
        if made - words[DONE] >= self.capacity:
            raise AssertionError("more requests than the ring holds")
        words[RING + made % self.capacity] = code
        self.made = made = made + 1
        words[HEAD] = made
        if PLAIN_STORES_PUBLISH:
            fence()
            if not words[WORKER_ASLEEP]:
                return made
        self.bell.ring()
        return made

    def collect(self) -> list[Any]:
        """Return the frames that have arrived since the last call."""
        raise NotImplementedError

    def work(self) -> None:
        """Do what was requested, if this worker has nobody else to do it."""

    def alive(self) -> bool:
        """Whether it can still answer."""
        return True

    def watched(self) -> list[int]:
        """Descriptors that become readable when it has sent something or died."""
        return []

    def stack(self) -> str:
        """Return where its Python code stands now."""
        return ""

    def last_words(self) -> str:
        """Say how it ended."""
        return "it has not ended"

    def kill(self) -> None:
        """End it at once, with everything it started; return when it is gone."""

    def close(self, timeout: float) -> None:
        """End it in order, and at once if that takes longer than `timeout` seconds."""
