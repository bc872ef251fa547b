"""Requests whose workers may be lost: waiting for all of them, and asking again, a few times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from stretto.workers.output import deliver_all
from stretto.workers.requests import Request
from stretto.workers.supervisor import Supervisor

K = TypeVar("K")

MOST_RESTARTS = 3
"""How often something is asked again whose worker died or hung."""


def answered(
    supervisor: Supervisor, asked: dict[K, Request], again: Callable[[K], None]
) -> Iterator[tuple[K, Request]]:
    """Wait for what was asked; yield each request that has an answer, or failed for good, and show what was put out.

    Whoever is given one takes it out of `asked`, or puts another in its place. `again` does that if a worker was lost.
    """
    lost = dict.fromkeys(asked, 0)
    while asked:
        supervisor.wait(list(asked.values()), 1)
        for key, request in list(asked.items()):
            if not request.finished:
                continue
            if request.lost and lost[key] < MOST_RESTARTS:
                lost[key] += 1
                again(key)
                continue
            deliver_all(request.outputs)
            yield key, request
