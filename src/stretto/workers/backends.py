"""The table of backends: where code runs that does not run in the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import UsageError
from stretto.workers.arena import Arena
from stretto.workers.base import Port, Service, Worker
from stretto.workers.control import Bell
from stretto.workers.message import MessageWorker
from stretto.workers.process import ProcessWorker
from stretto.workers.thread import ThreadWorker
from stretto.workers.waiting import Clock


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


def _start_thread(
    index: int, capacity: int, arena: Arena, bell: Bell, factory: Callable[[Port], Service], **_: Any
) -> Worker:
    return ThreadWorker(index, capacity, arena, bell, factory)


SERIAL = Backend("serial", None)
THREAD = Backend("thread", _start_thread, caller_works=False)
PROCESS = Backend("process", ProcessWorker, pickles=True, killable=True)
MESSAGE_PROCESS = Backend("process", MessageWorker, pickles=True, shares_memory=False, killable=True)
"""Processes that share nothing with their caller, as if they were on another machine."""

BACKENDS = {backend.name: backend for backend in (SERIAL, THREAD, PROCESS)}


def backend_named(name: str) -> Backend:
    """Return the row with this name."""
    if name not in BACKENDS:
        raise UsageError(f"backend must be 'auto', {', '.join(map(repr, BACKENDS))}, got {name!r}")
    return BACKENDS[name]
