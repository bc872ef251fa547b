"""Starting as many workers as the machine allows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from stretto.errors import FewerWorkers, ResourceError, user_stacklevel
from stretto.workers.supervisor import Supervisor

T = TypeVar("T")


def start_or_fewer(
    workers: int, make: Callable[[int], Supervisor], start: Callable[[Supervisor], T]
) -> tuple[Supervisor, T, int, str]:
    """Start so many workers, or fewer, with a warning, if there are not enough descriptors, processes or memory.

    `make` makes a supervisor with so many seats, and `start` starts workers in all of them. Returns the supervisor, what
    `start` returned, how many workers there are, and why these are fewer, if they are.

    Raises:
        ResourceError: if there cannot be a single one.
    """
    asked, lack = workers, ""
    while True:
        supervisor = make(workers)
        try:
            started = start(supervisor)
            reason = tell_fewer(supervisor, workers, asked, lack) if lack else ""
            return supervisor, started, workers, reason
        except ResourceError as error:
            count = sum(seat.worker is not None for seat in supervisor.seats)
            supervisor.close()
            if workers == 1:
                raise
            workers, lack = min(workers - 1, count_to_keep(count)), str(error)
        except BaseException:
            supervisor.close()
            raise


def count_to_keep(started: int) -> int:
    """Return how many workers there should be where no more than so many could be started.

    Not as many as that: the caller's program, and who has to be replaced, need some room too.
    """
    return max(1, 3 * started // 4)


def tell_fewer(supervisor: Supervisor, workers: int, asked: int, lack: str) -> str:
    """Warn that there are fewer workers than were asked for; return why."""
    reason = f"{supervisor.backend} with {workers} workers, because {asked} cannot be had: {lack}"
    warnings.warn(FewerWorkers(reason), stacklevel=user_stacklevel())
    return reason
