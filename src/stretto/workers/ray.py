"""A worker on some node of a Ray cluster: its caller's end. It has messages alone, and calls of an actor carry them."""

from __future__ import annotations

import collections
import contextlib
import select
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from stretto.errors import Place
from stretto.workers.base import Factory, Failure, Output, Spans
from stretto.workers.cluster import Cluster
from stretto.workers.control import DONE, NO_BELL, Bell, private_words
from stretto.workers.lent import Lent
from stretto.workers.mail import Frames, framed
from stretto.workers.message import MessageWorker
from stretto.workers.surroundings import Surroundings

_WITHOUT_MODULE = (
    ", on a node that may lack what the caller has: install it there, or pass runtime_env to stretto.cluster"
)
"""Follows what was done when something could not be imported."""

_STACK_SECONDS, _END_SECONDS = 5.0, 15.0


class RayWorker(MessageWorker):
    """A process on a node; an actor there has started it and carries what both sides send."""

    _mail: RayMail

    def __init__(self, cluster: Cluster, index: int, capacity: int, factory: Factory, native_threads: int = 1) -> None:
        self._frames = []
        self._lent = lent = cluster.lend(native_threads)
        try:
            start = cluster.pickled_start(factory, lent)
        except BaseException:
            cluster.drop(lent)
            raise
        self._cluster, self.delay_seconds = cluster, cluster.pulse_seconds
        mail = RayMail(cluster, lent)
        self._take_up(index, private_words(capacity), NO_BELL, RayProcess(cluster, lent, mail), mail)
        here = Surroundings.of_this_process(index, 0.0, native_threads)
        cores = max(1, int(cluster.num_cpus))
        lent.asked = self._asked
        self._begin(replace(here, pulse_seconds=cluster.pulse_seconds, cores=cores, elsewhere=True), start)

    @property
    def node(self) -> str | None:
        return self._lent.node

    @property
    def node_id(self) -> str | None:
        """Ray's name of that node."""
        return self._lent.node_id

    @property
    def installation(self) -> Mapping[str, str]:
        """The versions of what numbers come from there."""
        return self._lent.installation

    def _asked(self) -> int:
        return self.made - int(self.words[DONE])

    def collect(self) -> list[Any]:
        return [self._placed(frame) for frame in super().collect()]

    def _at(self, place: Place, remedy: str = "") -> Place:
        return replace(place, doing=place.doing + remedy, node=self.node, worker=self.index)

    def _placed(self, frame: Any) -> Any:
        """Add to what is told of a place on which node it is; times become those of this machine."""
        match frame:
            case Failure(text=text) if "ModuleNotFoundError" in text:
                return replace(frame, place=self._at(frame.place, _WITHOUT_MODULE))
            case Output() | Failure():
                return replace(frame, place=self._at(frame.place))
            case Spans(spans):
                offset = self._lent.clock_offset()
                return Spans([(name, start - offset, took, pid, thread) for name, start, took, pid, thread in spans])
            case _:
                return frame


class RayMail:
    """The caller's end of a connection that calls of an actor carry.

    Each call brings what it has, if anything, and comes back with what the process says next. One of them always waits
    there: so an answer takes one call, and what is lost is heard of at once.
    """

    unsent = False

    def __init__(self, cluster: Cluster, lent: Lent) -> None:
        self._cluster, self._lent = cluster, lent
        self._bell = Bell.create()
        self._ringing = threading.Lock()
        self.fd = self._bell.fd
        self.frames, self.ended, self.lost = Frames(), False, ""
        self._back: collections.deque[Future[Any]] = collections.deque()  # calls that came back
        self._early: dict[int, bytes] = {}
        self._sent = self._away = self._taken = 0

    def post(self, data: bytes, code: int = 0) -> None:
        shared = self._cluster.shared(data)
        if shared is None:
            self._call(framed(data, code))
        else:
            self._call(framed(b"", code, len(data)), shared)

    def _call(self, *parts: Any) -> None:
        self._sent += 1
        self._away += 1
        answer = self._lent.actor.exchange.remote(self._lent.life, self._sent, *parts)
        answer.future().add_done_callback(self._came_back)

    def _came_back(self, future: Future[Any]) -> None:
        """Keep an answer; in a thread of Ray's."""
        self._back.append(future)
        with self._ringing:
            if self.fd >= 0:
                self._bell.ring()

    def flush(self) -> None:
        """Nothing waits for room: Ray keeps what was sent."""

    def drain(self) -> bool:
        if self.ended:
            return False
        self._bell.clear()
        arrived = False
        while self._back:
            self._away -= 1
            try:
                number, data = self._back.popleft().result()
            except Exception as error:  # noqa: BLE001  whatever Ray says: the actor cannot be reached any more
                self.lost = self.lost or _first_line(error)
                continue
            self._early[number] = data
        while not self.ended and (data := self._early.pop(self._taken + 1, None)) is not None:
            self._taken += 1
            self.frames.put(data)
            self.ended = not data
            arrived = arrived or bool(data)
        self.ended = self.ended or bool(self.lost)
        if not (self._away or self.ended):
            self._call()
        return arrived

    @property
    def ends(self) -> bool:
        """Whether what came back, and was not taken in yet, says that this is the end."""
        # It is left there, and the bell as it is: whoever takes it in must hear of it.
        return any(one.exception() is not None or not one.result()[1] for one in list(self._back))

    def wait(self, seconds: float) -> None:
        """Wait until something has come back."""
        if not self._back:
            poller = select.poll()
            poller.register(self.fd, select.POLLIN)
            poller.poll(seconds * 1000)

    def close(self) -> None:
        with self._ringing:
            self.fd, self.ended = -1, True
            self._bell.close()


class RayProcess:
    """The process of a worker on a node."""

    fd = -1

    def __init__(self, cluster: Cluster, lent: Lent, mail: RayMail) -> None:
        self._cluster, self._lent, self._mail = cluster, lent, mail
        self._words: str | None = None
        self._pid = lent.actor.begin.remote(lent.life).future()

    @property
    def pid(self) -> int | None:
        """Its number, if it is one of this machine's processes, and known."""
        if not (self._lent.is_here and self._pid.done()) or self._pid.exception() is not None:
            return None
        return int(self._pid.result())

    @property
    def told(self) -> bool:
        return self._words is not None

    def alive(self) -> bool:
        return not (self.told or self._mail.ended or self._mail.ends)

    def wait(self, seconds: float) -> bool:
        if self.alive():
            self._mail.wait(seconds)
        return not self.alive()

    def end_soon(self) -> None:
        self._lent.actor.end.remote(self._lent.life)

    def stack(self) -> str:
        if self._lent.node is None:
            return f"(it was not started yet: {self._cluster.why_not_placed()})"
        with contextlib.suppress(Exception):  # whatever Ray says, this is about something worse
            return str(self._cluster.answer(self._lent.actor.stack.remote(self._lent.life), _STACK_SECONDS))
        return ""

    def last_words(self) -> str:
        if self._words is None:
            self._words = self._end()
        return self._words

    def _end(self) -> str:
        where = f"on node {self._lent.node}" if self._lent.node else "before it had a node"
        if not self._mail.lost and self._lent.node is not None:
            try:
                words = str(self._cluster.answer(self._lent.actor.end.remote(self._lent.life), _END_SECONDS))
            except Exception as error:  # noqa: BLE001  the same
                self._mail.lost = _first_line(error)
            else:
                self._cluster.take_back(self._lent)
                return f"{words} ({where})" if "\n" not in words else words.replace("\n", f" ({where})\n", 1)
        self._cluster.lose(self._lent)
        return f"it was lost {where}: {self._mail.lost or self._cluster.why_not_placed()}"

    def let_go(self) -> None:
        """Nothing of it is here."""


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
