"""Pool: workers that are given one message at a time; it says who has answered, who died, and who hangs."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from stretto import trace
from stretto.budget import NativeThreads
from stretto.errors import Place, WorkerDied, WorldHung
from stretto.workers import watchdog
from stretto.workers.arena import Arena
from stretto.workers.backends import Backend
from stretto.workers.base import Failure, Output, Port, Reply, Service, Spans, Worker
from stretto.workers.control import BEAT, DONE, MAIL, POSITION, TRACING, Bell
from stretto.workers.inline import InlineWorker
from stretto.workers.mail import Unreadable, dump
from stretto.workers.output import deliver
from stretto.workers.resources import resources
from stretto.workers.shared_mailbox import Box, Boxed, boxes, lay_out_boxes
from stretto.workers.waiting import LONGEST_SLEEP_SECONDS, Waiter

_EXIT_SECONDS = 1.0
_CAPACITY = 64

Factory = Callable[[Port], Service]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a message: its value, or why there is none.

    `lost`: the worker died or hung, and is gone. `beats` is how often it gave a sign of life while it was at this.
    """

    worker: int
    value: Any = None
    error: BaseException | None = None
    lost: bool = False
    beats: int = 0


@dataclass(slots=True)
class _Seat:
    """A worker's place in the pool; `number` is the request that it was given, 0 if it is idle.

    `boxes` are for what it is given and for its answer, if there are any; `boxed`: the request lies in them.
    """

    factory: Factory
    boxes: tuple[Box, Box] | None = None
    worker: Worker | None = None
    number: int = 0
    boxed: bool = False
    beat: int = 0
    limit_seconds: float | None = None
    seen: tuple[int, ...] = ()
    since: float = 0.0


class Pool:
    """Runs one service a place. Where the backend has no elsewhere, the caller does the work, when it waits.

    A worker that has died or hung is told as such by `wait`, and a new one is started when its place is given something
    again: whether to try again is for the owner to say. A worker hangs when it shows no sign of life (an answer, or a
    change of its `POSITION` or `BEAT`) for longer than the limit of what it was given.

    Workers look for the next message for `spin_seconds` before they sleep, and so does the caller if it `spins`: where
    each of them has a core. With `box_bytes`, plain messages and their answers of up to that size go through memory
    that both sides share, and through a socket only if they are larger.
    """

    def __init__(
        self,
        backend: Backend,
        factories: Sequence[Factory],
        *,
        spin_seconds: float = 0.0,
        spins: bool = True,
        box_bytes: int = 0,
        start_seconds: float | None = 120.0,
    ) -> None:
        self._backend = backend
        self._spin_seconds = spin_seconds
        self._start_seconds = start_seconds
        with resources("a pool of workers"):
            self._bell = Bell.create()
            self._arena = Arena.create(shared=backend.crosses_processes)
        self._waiter = Waiter(self._bell, spin_seconds if spins else 0.0)
        self._native = NativeThreads()
        self._places = [_Seat(factory) for factory in factories]
        if box_bytes and backend.crosses_processes:
            fields, size = lay_out_boxes(len(factories), box_bytes)
            self._arena.allocate(size)
            for place, pair in zip(self._places, fields, strict=True):
                place.factory, place.boxes = Boxed(place.factory, pair), boxes(self._arena, pair)
        self._answers: list[Answer] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._places)

    @property
    def idle(self) -> list[int]:
        """The places that can be given something."""
        return [index for index, place in enumerate(self._places) if not place.number]

    @property
    def living(self) -> list[int]:
        """The places that can be given something and have a worker, as far as is known."""
        return [index for index in self.idle if self._places[index].worker is not None]

    @property
    def busy(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self._answers) or any(place.number for place in self._places)

    @property
    def pids(self) -> list[int]:
        """The processes that it runs now."""
        return [p.worker.pid for p in self._places if p.worker is not None and p.worker.pid is not None]

    def give(
        self,
        index: int,
        message: object,
        limit_seconds: float | None = None,
        *,
        by_value: bool = True,
        fresh: bool = True,
    ) -> None:
        """Let an idle place work on a message; `wait` gives the answer.

        `by_value=False` is for messages of plain data, which are pickled ten times faster; `fresh=False` for those that
        only the worker understands which was there before: if it has died, `wait` tells that instead.
        """
        place = self._places[index]
        assert not place.number, f"place {index} has something to do already"
        worker = place.worker
        if not fresh and (worker is None or not worker.alive()):
            self._tell_death(index, place)
            return
        if worker is None or not worker.alive():
            self._discard(place)
            worker = self._start(index)
            # What it is given first has to wait until it is there.
            limit_seconds = None if limit_seconds is None else limit_seconds + (self._start_seconds or 0.0)
        worker.words[TRACING] = trace.active is not None
        place.boxed, place.beat = False, int(worker.words[BEAT])
        if place.boxes is None or by_value:
            place.number = worker.send(message, by_value=by_value)
        else:
            data = dump(message)
            place.boxed = len(data) <= place.boxes[0].size
            if place.boxed:
                place.boxes[0].put(data)
                place.number = worker.signal(len(data))
            else:
                place.number = worker.post(data)
        place.limit_seconds, place.since, place.seen = limit_seconds, time.monotonic(), ()

    def _start(self, index: int) -> Worker:
        place = self._places[index]
        if self._backend.start is None:
            place.worker = inline = InlineWorker(index, _CAPACITY, self._arena, place.factory)
            watchdog.watch(inline, lambda: place.limit_seconds, "a worker process")
        else:
            place.worker = self._backend.start(
                index, _CAPACITY, self._arena, self._bell, place.factory, spin_seconds=self._spin_seconds
            )
            self._waiter.watch(place.worker)
        return place.worker

    def wait(self, seconds: float | None = None) -> list[Answer]:
        """Return the answers that have come; wait for the first if there is none, `seconds` at most (`None`: for ever)."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._answers:
            busy = [place for place in self._places if place.number]
            if not busy or self._work_inline(busy):
                self._advance_all()
                break
            self._advance_all()
            if self._answers or (deadline is not None and time.monotonic() >= deadline):
                break
            self._sleep(busy, deadline)
        answers, self._answers = self._answers, []
        return answers

    def _work_inline(self, busy: list[_Seat]) -> bool:
        """Do the oldest thing that the caller itself was given, if there is any."""
        for place in busy:
            if isinstance(place.worker, InlineWorker):
                with self._native.capped():
                    place.worker.work()
                return True
        return False

    def _sleep(self, busy: list[_Seat], deadline: float | None) -> None:
        pairs = [(place.worker.words, place.number) for place in busy if place.worker is not None]

        def ready() -> bool:
            return any(words[DONE] >= number for words, number in pairs)

        if self._waiter.spin(ready):
            return
        limits = [LONGEST_SLEEP_SECONDS]
        limits += [p.since + p.limit_seconds - time.monotonic() for p in busy if p.limit_seconds is not None]
        limits += [] if deadline is None else [deadline - time.monotonic()]
        workers = [place.worker for place in busy if place.worker is not None]
        for worker in self._waiter.sleep(workers, ready, max(0.0, min(limits))):
            worker.exchange()
        for index, place in enumerate(self._places):
            if place.number and place.worker is not None:
                self._check_life(index, place, place.worker)

    def _check_life(self, index: int, place: _Seat, worker: Worker) -> None:
        if not worker.alive():
            self._advance(index, place)
            if place.number:
                self._tell_death(index, place)
            return
        seen = (int(worker.words[DONE]), int(worker.words[POSITION]), int(worker.words[BEAT]))
        now = time.monotonic()
        if seen != place.seen or worker.waits():
            place.seen, place.since = seen, now
        elif place.limit_seconds is not None and now - place.since > place.limit_seconds:
            stack = worker.stack()
            told = (
                f"no sign of life for {now - place.since:.3g} s; its Python stack was:\n{stack.rstrip() or '(unknown)'}"
            )
            self._lose(index, place, WorldHung(f"worker {index}: {told}", Place("working", worker=index), stack))

    def _tell_death(self, index: int, place: _Seat) -> None:
        told = f"worker {index} died: {place.worker.last_words() if place.worker is not None else 'it was told before'}"
        self._lose(index, place, WorkerDied(told, Place("working", worker=index), 0))

    def _lose(self, index: int, place: _Seat, error: BaseException) -> None:
        beats = int(place.worker.words[BEAT]) - place.beat if place.worker is not None and place.number else 0
        place.number = 0
        self._discard(place)
        self._answers.append(Answer(index, error=error, lost=True, beats=beats))

    def _advance_all(self) -> None:
        for index, place in enumerate(self._places):
            if place.number:
                self._advance(index, place)

    def _advance(self, index: int, place: _Seat) -> None:
        """Take in what a worker has sent."""
        worker = place.worker
        if worker is None:
            return
        done = worker.words[DONE] >= place.number  # before its mail is read: a failure is sent first
        if worker.words[MAIL] != worker.read:
            self._read_mail(index, place, worker)
        if place.boxed and done and place.number:
            self._answers.append(self._open_box(index, place))
            place.number = 0

    def _open_box(self, index: int, place: _Seat) -> Answer:
        assert place.boxes is not None
        try:
            return Answer(index, place.boxes[1].take())
        except Exception:  # noqa: BLE001  whatever a foreign __setstate__ or a missing module raises: it must be told
            return _unreadable(index, place.number, traceback.format_exc())

    def _read_mail(self, index: int, place: _Seat, worker: Worker) -> None:
        for frame in worker.collect():
            match frame:
                case Reply(number, value) if number == place.number:
                    place.number = 0
                    self._answers.append(Answer(index, value))
                case Failure(number) if number in (place.number, 1):
                    place.number = 0  # a service that cannot be started answers nothing else
                    beats = int(worker.words[BEAT]) - place.beat
                    self._answers.append(Answer(index, error=frame.error(), beats=beats))
                    if number == 1:
                        self._discard(place)
                case Unreadable(number, text) if number == place.number:
                    place.number = 0
                    self._answers.append(_unreadable(index, number, text))
                case Output():
                    deliver(frame)
                case Spans(spans):
                    if trace.active is not None:
                        trace.active.spans.extend(spans)
                        trace.active.names.setdefault(spans[0][3], f"worker {index}")
                case _:
                    pass

    def _discard(self, place: _Seat) -> None:
        if isinstance(place.worker, InlineWorker):
            watchdog.leave(place.worker)
        if place.worker is not None:
            self._waiter.forget(place.worker)
            place.worker.kill()
            place.worker = None

    def kill(self, index: int) -> None:
        """End a worker at once; what it was given is never answered."""
        self._places[index].number = 0
        self._discard(self._places[index])

    def close(self) -> None:
        """End all workers; one that is busy is ended after a moment. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            for place in self._places:
                if place.worker is not None and place.worker.alive():
                    if isinstance(place.worker, InlineWorker):
                        place.worker.forget_requests()
                    place.worker.stop()
            deadline = time.monotonic() + _EXIT_SECONDS  # for all of them together
            for place in self._places:
                if place.worker is not None and place.worker.alive():
                    place.worker.close(max(0.0, deadline - time.monotonic()))
        finally:
            for place in self._places:
                self._discard(place)
                place.boxes = None  # and with them the shared memory
            self._waiter.forget_all()
            self._bell.close()
            self._arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unreadable(index: int, number: int, text: str) -> Answer:
    return Answer(index, error=Failure(number, Place("reading an answer", worker=index), text, None).error())
