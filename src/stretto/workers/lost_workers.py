"""Lost workers: what becomes of what was asked of a worker that died or hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stretto.errors import Place, StrettoError, WorkerDied, WorldHung

if TYPE_CHECKING:
    from stretto.workers.requests import Seat
    from stretto.workers.supervisor import Supervisor


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


def loss(seat: Seat, place: Place, ended: str, hung_after: float | None, stack: str) -> StrettoError:
    """Return what to tell of a worker that hung with this stack, or died, and then `ended` somehow."""
    if hung_after is not None:
        shown = stack.rstrip() or "(unknown)"
        return WorldHung(f"no answer for {hung_after:g} s {place}; its Python stack was:\n{shown}", place, stack)
    often = f"{seat.restarts + 1} times in a row, the last time " if seat.restarts else ""
    return WorkerDied(f"worker {seat.index} died {often}{place}: {ended}", place, seat.restarts, ended)
