"""Running a function once in a process of its own: what it calls may hang or crash, and takes nobody with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from stretto.errors import Place, WorkerDied
from stretto.workers.backends import PROCESS
from stretto.workers.base import Port
from stretto.workers.requests import Seat, TellWhoAsked, sender
from stretto.workers.supervisor import Supervisor

T = TypeVar("T")

Beat = Callable[[], None]
"""Shows a sign of life."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a function returned nothing: what it raised, or, if the process is `lost`, how that died or hung."""

    reason: str
    lost: bool
    error: BaseException


@dataclass(frozen=True, slots=True)
class _Call:
    """Message: call the function and answer with what it returns."""


class _Caller:
    """Calls a function in a process that is thrown away with all that it leaves behind."""

    def __init__(self, function: Callable[[Beat], Any], doing: str, port: Port) -> None:
        port.muted = True  # what it prints nobody asked for
        port.place = lambda: Place(doing)
        self._function, self._beat = function, port.beat

    def handle(self, message: Any) -> object:
        return self._function(self._beat) if isinstance(message, _Call) else None

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


def run_apart(function: Callable[[Beat], T], doing: str, limit_seconds: float) -> T | Problem:
    """Return what a function returns in a process of its own, or the problem it had.

    It hangs if it neither returns nor calls the `beat` that it is given for `limit_seconds`.

    Raises:
        UsageError: if the function cannot be pickled.
    """
    with Supervisor(PROCESS, recovery=_TellAlone()) as supervisor:
        seat = supervisor.add_seat(partial(_Caller, function, doing))
        request = supervisor.ask(seat, sender(_Call()), doing, limit_seconds)
        supervisor.wait([request])
    if request.error is None:
        value: T = request.value
        return value
    error = request.error
    if isinstance(error, WorkerDied):
        error = WorkerDied(f"its process died {error.place}: {error.ended}", error.place, ended=error.ended)
    if request.lost:
        return Problem(str(error).partition("; its Python stack")[0].partition("\n")[0], lost=True, error=error)
    return Problem(f"it raised {error!r}", lost=False, error=error)


class _TellAlone(TellWhoAsked):
    """Tells of a worker that is the only one, and therefore needs no number."""

    def place(self, seat: Seat, doing: str) -> Place:
        return Place(doing)
