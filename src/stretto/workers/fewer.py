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
            reason = (
                f"{supervisor.backend} with {workers} workers, because {asked} cannot be had: {lack}" if lack else ""
            )
            if reason:
                warnings.warn(FewerWorkers(reason), stacklevel=user_stacklevel())
            return supervisor, started, workers, reason
        except ResourceError as error:
            count = sum(seat.worker is not None for seat in supervisor.seats)
            supervisor.close()
            if workers == 1:
                raise
            # Not as many as could be started: the caller's program, and who has to be replaced, need some room too.
            workers, lack = max(1, min(workers - 1, 3 * count // 4)), str(error)
        except BaseException:
            supervisor.close()
            raise
