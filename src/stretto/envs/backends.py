"""The table of backends: where the worlds run that do not run in the caller."""

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
    """A row of the table. `start` makes a worker elsewhere, and is `None` where there is no elsewhere."""

    name: str
    start: Callable[..., Worker] | None
    crosses_processes: bool

    def __str__(self) -> str:
        return self.name


def _start_thread(
    index: int, capacity: int, arena: Arena, bell: Bell, factory: Callable[[Port], Service], **_: Any
) -> Worker:
    return ThreadWorker(index, capacity, arena, bell, factory)


SERIAL = Backend("serial", None, crosses_processes=False)
THREAD = Backend("thread", _start_thread, crosses_processes=False)
PROCESS = Backend("process", ProcessWorker, crosses_processes=True)

BACKENDS = {backend.name: backend for backend in (SERIAL, THREAD, PROCESS)}


def backend_named(name: str) -> Backend:
    """Return the row with this name."""
    if name not in BACKENDS:
        raise UsageError(f"backend must be 'auto', {', '.join(map(repr, BACKENDS))}, got {name!r}")
    return BACKENDS[name]
