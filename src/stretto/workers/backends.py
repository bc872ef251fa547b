"""The table of backends: where code runs that does not run in the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stretto.errors import UsageError
from stretto.workers.arena import Arena
from stretto.workers.base import Port, Service, Worker
from stretto.workers.control import Bell
from stretto.workers.process import ProcessWorker
from stretto.workers.thread import ThreadWorker


@dataclass(frozen=True, slots=True)
class Backend:
    """A row of the table. `start` makes a worker elsewhere, and is `None` where there is no elsewhere.

    `caller_works`: whether the caller may be one of the workers. Threads leave it free to see that one of them hangs:
    their worlds take turns with the global generators, and so could keep the caller from ever looking.
    """

    name: str
    start: Callable[..., Worker] | None
    crosses_processes: bool
    caller_works: bool

    def __str__(self) -> str:
        return self.name


def _start_thread(
    index: int, capacity: int, arena: Arena, bell: Bell, factory: Callable[[Port], Service], **_: Any
) -> Worker:
    return ThreadWorker(index, capacity, arena, bell, factory)


SERIAL = Backend("serial", None, crosses_processes=False, caller_works=True)
THREAD = Backend("thread", _start_thread, crosses_processes=False, caller_works=False)
PROCESS = Backend("process", ProcessWorker, crosses_processes=True, caller_works=True)

BACKENDS = {backend.name: backend for backend in (SERIAL, THREAD, PROCESS)}


def backend_named(name: str) -> Backend:
    """Return the row with this name."""
    if name not in BACKENDS:
        raise UsageError(f"backend must be 'auto', {', '.join(map(repr, BACKENDS))}, got {name!r}")
    return BACKENDS[name]
