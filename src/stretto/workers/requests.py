"""Requests, what is asked of workers; their seats, who was asked what and has sent what; and what becomes of lost ones."""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from stretto import trace
from stretto.errors import Place
from stretto.workers.base import Failure, Output, Reply, Spans, Worker
from stretto.workers.control import DONE
from stretto.workers.mail import Unreadable

if TYPE_CHECKING:
    from stretto.workers.supervisor import Supervisor

Issue = Callable[[Worker], int]
"""Makes a request of a worker and returns its number."""


@dataclass(slots=True)
class Request:
    """Something asked of a seat; `issue` asks again if the worker has to be replaced.

    It may take `limit_seconds` without a sign of life; where there is a time `until` which it is waited for, no sign of
    life makes that later. A `setup` request brings a new worker to where it can be asked something. Once it is
    `finished` it has a `value`, or an `error`; `lost`: the worker died or hung. `beats` is how often the worker gave a
    sign of life while it was at a request that failed, `position` what it was at then, and `outputs` what a worker that
    was lost had put out: whoever asked shows it, or lets it be said again.
    """

    seat: Seat
    issue: Issue
    doing: str
    limit_seconds: float | None
    on_value: Callable[[Any], None] | None = None
    number: int = 0
    setup: bool = False
    hung: bool = False
    until: float | None = None
    first_beat: int = 0
    finished: bool = False
    value: Any = None
    error: BaseException | None = None
    lost: bool = False
    beats: int = 0
    position: int = 0
    outputs: list[Output] = field(default_factory=list)

    def fail(self, error: BaseException | None, *, lost: bool = False) -> None:
        """Let this be finished without a value."""
        self.finished, self.error, self.lost = True, error, lost
        if self.seat.worker is not None:
            _, self.position, beats = self.seat.worker.progress
            self.beats = beats - self.first_beat


@dataclass(slots=True)
class Seat:
    """A place for a worker, and the worker that has it now.

    `values` and `outputs` came by mail, and wait until their request counts as answered; `complete(worker, number,
    value)` adds to an answer what lies in shared memory. Where there is no worker, the next request brings a new one;
    where it does not, the `error` is what requests get. `usual_limit` is that of requests of which there is no record.
    """

    index: int
    factory: Any
    inline: bool
    capacity: int
    usual_limit: float | None = None
    complete: Callable[[Worker, int, Any], Any] | None = None
    worker: Worker | None = None
    requests: deque[Request] = field(default_factory=deque)
    values: dict[int, Any] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    has_spoken: bool = False
    built: bool = False
    error: BaseException | None = None
    restarts: int = 0
    seen: tuple[int, ...] = ()
    since: float = 0.0

    @property
    def ready(self) -> bool:
        """Whether its worker has been started and could begin with what it is asked."""
        return self.worker is not None and not (self.requests and self.requests[0].setup)

    def take(self, worker: Worker, now: float) -> None:
        """Make this the worker of the seat; it knows nothing of what others were asked, and has sent nothing yet."""
        self.worker, self.values, self.since, self.seen, self.error = worker, {}, now, worker.progress, None

    def seat(self, worker: Worker | None, *, inline: bool) -> None:
        """Make this the worker of the seat, as if it had always been."""
        self.worker, self.inline = worker, inline

    # ---- what its worker has sent ----

    def take_mail(self, worker: Worker) -> None:
        """Take in what has come by mail."""
        for frame in worker.collect():
            match frame:
                case Reply(number, value):
                    self.values[number] = value
                case Failure():
                    self.values[frame.number] = frame
                case Unreadable(number, text):
                    self.values[number] = self._unreadable(number, text)
                case Output():
                    # What a service says when it is built, which is request 1, it said already if it was before.
                    if frame.number > 1 or not self.built:
                        self.outputs.append(frame)
                    self.has_spoken = True
                case Spans(spans):
                    if trace.active is not None:
                        trace.active.spans.extend(spans)
                        where = f" on node {worker.node}" if worker.node else ""
                        trace.active.names.setdefault(spans[0][3], f"worker {self.index}{where}")
                case _:
                    raise AssertionError(f"no such frame: {frame!r}")

    def take_value(self, number: int) -> Any:
        """Return what request `number` was answered with."""
        value = self.values.pop(number, None)
        if self.complete is not None and self.worker is not None:
            value = self.complete(self.worker, number, value)
        return value

    def finish(self, request: Request) -> None:
        """Let a request have its answer."""
        try:
            value = self.take_value(request.number)
        except Exception:  # noqa: BLE001  whatever a foreign __setstate__ or a missing module raises
            value = self._unreadable(request.number, traceback.format_exc())
        if isinstance(value, Failure):
            request.fail(value.error())
            return
        request.finished, request.value = True, value
        if request.setup:
            self.built = True
        else:
            self.restarts = 0
        if request.on_value is not None:
            request.on_value(value)

    def _unreadable(self, number: int, text: str) -> Failure:
        return Failure(number, Place("reading an answer", worker=self.index), text, None)

    # ---- how long it takes ----

    def ends(self) -> float:
        """Return when its first request has taken too long, unless there is a sign of life before; `inf`: never."""
        if self.inline or not self.requests:
            return math.inf
        request = self.requests[0]
        if request.until is not None:
            return request.until
        if request.limit_seconds is None:
            return math.inf
        late = 0.0 if self.worker is None else self.worker.delay_seconds
        return self.since + request.limit_seconds + late

    def hangs(self, now: float) -> bool:
        """Look for a sign of life; return whether its first request has taken too long."""
        if self.worker is None or self.inline or not self.requests:
            return False
        progress = self.worker.progress
        if progress != self.seen:
            self.seen, self.since = progress, now
        if now <= self.ends():
            return False
        if self.requests[0].until is None and self.worker.waits():
            self.since = now
            return False
        return True

    def present_limit(self) -> float | None:
        """Return the limit of what it does now; asked from another thread, so its requests may be gone meanwhile."""
        try:
            return self.requests[0].limit_seconds
        except IndexError:
            return self.usual_limit


class Recovery(Protocol):
    """What becomes of a seat whose worker is lost; `remedy` is how code that hangs in the caller could be ended."""

    remedy: str

    def place(self, seat: Seat, doing: str) -> Place:
        """Say where a seat's worker is."""

    def started(self, seat: Seat) -> None:
        """Take note of a worker that was started just now."""

    def lost(self, supervisor: Supervisor, seat: Seat, hung_after: float | None) -> None:
        """Do something about a worker that died, or was silent for `hung_after` seconds."""

    def revive(self, supervisor: Supervisor, seat: Seat) -> None:
        """Start a worker in a seat that has none, unless its error is what requests are to get."""


class TellWhoAsked:
    """The simplest recovery: whoever asked a worker that is lost is told so, and the next request starts a new one."""

    remedy = "a worker process"

    def place(self, seat: Seat, doing: str) -> Place:
        return Place(doing, worker=seat.index)

    def started(self, seat: Seat) -> None:
        pass

    def lost(self, supervisor: Supervisor, seat: Seat, hung_after: float | None) -> None:
        error = supervisor.end(seat, hung_after)
        if error is not None:
            supervisor.give_up(seat, error, lost=True)

    def revive(self, supervisor: Supervisor, seat: Seat) -> None:
        supervisor.start(seat)


def sender(message: object, *, by_value: bool = True) -> Issue:
    """Return how to ask with a message. Plain data need not be pickled by value, which takes ten times as long."""
    return lambda worker: worker.send(message, by_value=by_value)


def signaller(code: int) -> Issue:
    """Return how to ask with a signal."""
    return lambda worker: worker.signal(code)


def not_again(worker: Worker) -> int:
    """Stand for a request that is never made again."""
    raise AssertionError(f"worker {worker.index} starts once")


def count_finished(requests: Sequence[Request]) -> int:
    """Return how many requests are answered."""
    return sum([request.finished for request in requests])


def answers_to(requests: Sequence[Request]) -> list[Any]:
    """Return the answers to finished requests, or raise the first failure in their order."""
    for request in requests:
        if request.error is not None:
            raise request.error
    return [request.value for request in requests]


def answered_enough(requests: Sequence[Request], wanted: int) -> Callable[[], bool]:
    """Return what looks whether so many of them are answered; it looks at shared words alone, again and again."""
    pending = [(r.seat.worker.words, r.number) for r in requests if not r.finished and r.seat.worker is not None]
    enough = wanted - (len(requests) - len(pending))

    def look() -> bool:
        count = 0
        for words, number in pending:
            if words[DONE] >= number:
                count += 1
        return count >= enough

    return look
