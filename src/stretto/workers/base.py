"""Worker: something that serves numbered requests in order; what it serves, and what both sides send each other.

A request is a *message* (any object) or a *signal* (a small number that says what to do with shared arrays). Both
are answered in order. A message always has a reply; a signal has one only if there is something to say.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from stretto import trace
from stretto.errors import Place, WorldFailed
from stretto.workers.control import (
    BEAT,
    CALLER_ASLEEP,
    COUNT,
    DONE,
    HEAD,
    LEARNED,
    MAIL,
    MESSAGE,
    NOTE,
    NOTE_BITS,
    PLAIN_STORES_PUBLISH,
    POSITION,
    RING,
    TRACING,
    WORKER_ASLEEP,
    Bell,
    Clock,
    fence,
)
from stretto.workers.mail import Mail, Sent

if TYPE_CHECKING:
    from stretto.workers.arena import Arena


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
    """The first message to a worker: what to serve."""

    factory: Factory


@dataclass(frozen=True, slots=True)
class Stop:
    """The last message: close the service and end."""


@dataclass(frozen=True, slots=True)
class Reply(Sent):
    """The answer to request `number`."""

    number: int
    value: object


@dataclass(frozen=True, slots=True)
class Failure:
    """Request `number` raised: where, the traceback as text, and the exception itself where it can travel."""

    number: int
    place: Place
    text: str
    exception: Exception | bytes | None

    def error(self) -> BaseException:
        """Return what the caller should raise: the original type if there is one, always with place and traceback."""
        as_text = WorldFailed(f"{self.place}:\n{self.text.rstrip()}", self.place, self.text)
        try:
            if isinstance(self.exception, bytes):
                original: Any = pickle.loads(self.exception)
                original.__cause__ = as_text  # Python prints the remote traceback from here, above the exception's own
            else:
                original = self.exception  # which carries its traceback itself
            original.add_note(str(self.place))
            original.place = self.place
        except Exception:  # noqa: BLE001  its class is not known here, or forbids attributes: text always arrives
            return as_text
        return cast(BaseException, original)


@dataclass(frozen=True, slots=True)
class Spans:
    """What a worker traced while it served a request."""

    spans: list[trace.Span]


@dataclass(frozen=True, slots=True)
class Output:
    """Something that code in a worker printed, logged or warned of at some place, while it served request `number`."""

    kind: str
    content: Any
    place: Place
    number: int


@dataclass(eq=False)
class Port:
    """A worker's end of everything that it shares with its caller.

    `position[0]` is what the service is at, for it to write: whoever watches the worker sees that it moves. `position[1]`
    is a count of its own.
    """

    pickles = False  # what is sent is pickled
    shares_memory = True  # the caller sees the same arena

    index: int
    words: memoryview
    mail: Mail
    bell: Bell
    caller_bell: Bell
    arena: Arena
    interruptible: bool = False  # it runs in the thread that Ctrl-C reaches
    muted: bool = False  # while steps are replayed, what they print was printed before
    held: list[Output] | None = None  # where output waits that may never be shown
    serving: int = 0  # the number of the request that is being answered

    def __post_init__(self) -> None:
        self.position = self.words[POSITION : COUNT + 1]
        self.place: Callable[[], Place] = lambda: Place("starting", worker=self.index)
        self._sent = 0
        self._lock = threading.RLock()

    def send(self, value: object, number: int = 0) -> None:
        """Send a frame, the answer to request `number` if it is one; `MAIL` tells the caller that there is some."""
        with self._lock:  # a world's own threads may print
            self.mail.send(value, number)
            self._sent += 1
            self.words[MAIL] = self._sent

    def beat(self) -> None:
        """Show a sign of life in the middle of something long."""
        self.words[BEAT] += 1

    @property
    def tracing(self) -> bool:
        """Whether requests are timed."""
        return bool(self.words[TRACING])

    @property
    def learned(self) -> int:
        """What the caller has said that it has learned from mail: a bit for each thing."""
        return self.words[LEARNED]

    def note(self, number: int) -> None:
        """Leave a number of 8 bits beside the answer to the present request: what lies in shared memory, for one."""
        self.words[NOTE] = self.serving << NOTE_BITS | number

    def finished(self, number: int) -> None:
        """Publish that requests up to `number` are answered."""
        words = self.words
        words[DONE] = number
        if PLAIN_STORES_PUBLISH:
            fence()
            if not words[CALLER_ASLEEP]:
                return
        self.caller_bell.ring()


Factory = Callable[[Port], Service]
"""Makes the service of a worker, in the worker; it is given its port."""


class Worker:
    """The caller's end of a worker. Subclasses say how it is started, watched and ended.

    This much is for one in the caller's own process; whoever sends bytes sends and collects in ways of his own.
    """

    def __init__(self, index: int, words: memoryview, mail: Any, bell: Bell) -> None:
        self.index = index
        self.words = words
        self.capacity = len(words) - RING
        self.bell = bell
        self._mail = mail
        self.made = 0
        self.read = 0
        self._stop = 0

    delay_seconds = 0.0
    """How old its signs of life may be when they arrive."""

    @property
    def pid(self) -> int | None:
        """The process that it runs in, if that is another one of this machine."""
        return None

    @property
    def node(self) -> str | None:
        """The node of the cluster that it runs on, if it does and has got one."""
        return None

    @property
    def done(self) -> int:
        """The number of the last request that it has answered."""
        return int(self.words[DONE])

    @property
    def progress(self) -> tuple[int, int, int]:
        """What changes as long as it moves: answers, position and signs of life."""
        words = self.words
        return words[DONE], words[POSITION], words[BEAT]

    @property
    def count(self) -> int:
        """What its service counts; where it shares no memory, as it was some time ago."""
        return int(self.words[COUNT])

    def cpu_seconds(self) -> float:
        """Return how long its process has computed; 0 if that is the caller's, or cannot be told."""
        return 0.0

    @property
    def has_mail(self) -> bool:
        """Whether it has sent something that was not collected yet."""
        return self.words[MAIL] != self.read

    def note_of(self, request: int) -> int | None:
        """Return the number that its service left beside the answer to a request, if that was the last one it left."""
        word = self.words[NOTE]
        return word & ((1 << NOTE_BITS) - 1) if word >> NOTE_BITS == request else None

    @property
    def learned(self) -> int:
        """What its service is told that we have learned from mail: a bit for each thing."""
        return self.words[LEARNED]

    @learned.setter
    def learned(self, bits: int) -> None:
        self.words[LEARNED] = bits

    def trace(self, on: bool) -> None:
        """Let it time its requests, or not."""
        self.words[TRACING] = on

    def send(self, message: object, *, by_value: bool = True) -> int:
        """Make a request that a message describes; return its number."""
        self._mail.post(message, self.made + 1)
        return self.signal(MESSAGE)

    def post(self, data: bytes) -> int:
        """Make a request that a message describes which `dump` has pickled; return its number."""
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

    def stop(self) -> int:
        """Ask it to close its service and to end, however often this is called; return the request's number."""
        if not self._stop:
            self._stop = self.send(Stop())
        return self._stop

    def exchange(self) -> bool:
        """Send what had no room before, and take in what has arrived; return whether anything had."""
        return False

    @property
    def unsent_fd(self) -> int:
        """The descriptor that has to become writable before the rest of a message can be sent; -1 if there is none."""
        return -1

    def collect(self) -> list[Any]:
        """Return the frames that have arrived since the last call."""
        self.read = int(self.words[MAIL])
        frames: list[Any] = self._mail.collect()
        return frames

    def work(self) -> None:
        """Do what was requested, if this worker has nobody else to do it."""

    def alive(self) -> bool:
        """Whether it can still answer."""
        return True

    def watched(self) -> list[int]:
        """Descriptors that become readable when it has sent something or died."""
        return []

    def waits(self) -> bool:
        """Whether it waits for what another worker has, and so is not the one that hangs."""
        return False

    def stack(self) -> str:
        """Return where its Python code stands now."""
        return ""

    def last_words(self) -> str:
        """Say how it ended."""
        return "it has not ended"

    def kill(self) -> None:
        """End it at once, with everything it started; return when it is gone."""

    def wait_gone(self, timeout: float) -> None:
        """Wait until one that was killed is gone where `kill` does not, for at most so many seconds."""

    def close(self, timeout: float) -> None:
        """End it in order, and at once if that takes longer than `timeout` seconds."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A row of the table. `start` makes a worker elsewhere, and is `None` where there is no elsewhere.

    `pickles`: what goes there must be picklable. `shares_memory`: the caller and its workers see the same arrays.
    `killable`: a worker that hangs can be ended, and dies without its caller. `caller_works`: whether the caller may be
    one of the workers. Threads leave it free to see that one of them hangs: their worlds take turns with the global
    generators, and so could keep the caller from ever looking. `clock` is what the caller waits by.
    """

    name: str
    start: Callable[..., Worker] | None
    pickles: bool = False
    shares_memory: bool = True
    killable: bool = False
    caller_works: bool = True
    clock: Clock = field(default_factory=Clock)

    def __str__(self) -> str:
        return self.name
