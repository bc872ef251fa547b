"""What is asked of workers, and the seats that they have."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.workers.base import Output, Port, Service, Worker

Factory = Callable[[Port], Service]
Issue = Callable[[Worker], int]
"""Makes a request of a worker and returns its number."""


@dataclass(slots=True)
class Request:
    """Something asked of a seat; `issue` asks again if the worker has to be replaced.

    It may take `limit_seconds` without a sign of life; where there is a time `until` which it is waited for, no sign of
    life makes that later. A `setup` request brings a new worker to where it can be asked something. Once it is
    `finished` it has a `value`, or an `error`; `lost`: the worker died or hung. `beats` is how often the worker gave a
    sign of life while it was at a request that failed, and `outputs` what a worker that was lost had put out: whoever asked
    shows it, or lets it be said again.
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
    outputs: list[Output] = field(default_factory=list)


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
    built: bool = False
    error: BaseException | None = None
    restarts: int = 0
    seen: tuple[int, ...] = ()
    since: float = 0.0

    def take_value(self, number: int) -> Any:
        """Return what request `number` was answered with."""
        value = self.values.pop(number, None)
        if self.complete is not None and self.worker is not None:
            value = self.complete(self.worker, number, value)
        return value

    def ends(self, request: Request) -> float | None:
        """Return when its first request has taken too long, unless there is a sign of life before; `None`: never."""
        if request.until is not None:
            return request.until
        return None if request.limit_seconds is None else self.since + request.limit_seconds


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
    count = 0  # a loop, not a sum: this stands in every step
    for request in requests:
        if request.finished:
            count += 1
    return count
