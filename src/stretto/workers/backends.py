"""The table of backends: where code runs that does not run in the caller."""

from __future__ import annotations

from typing import Any

from stretto.errors import UsageError
from stretto.workers.base import Backend, Worker
from stretto.workers.message import MessageWorker
from stretto.workers.process import ProcessWorker
from stretto.workers.thread import ThreadWorker

SERIAL = Backend("serial", None)
THREAD = Backend("thread", ThreadWorker, caller_works=False)
PROCESS = Backend("process", ProcessWorker, pickles=True, killable=True)
MESSAGE_PROCESS = Backend("process", MessageWorker, pickles=True, shares_memory=False, killable=True)
"""Processes that share nothing with their caller, as if they were on another machine."""


def _on_a_node(*where: Any, **settings: Any) -> Worker:
    """Start a worker on the cluster that was opened last."""
    from stretto.workers.ray import RayWorker  # which most programs never need

    return RayWorker(*where, **settings)


RAY = Backend("ray", _on_a_node, pickles=True, shares_memory=False, killable=True, caller_works=False)

BACKENDS = {backend.name: backend for backend in (SERIAL, THREAD, PROCESS, RAY)}


def backend_named(name: str) -> Backend:
    """Return the row with this name."""
    if name not in BACKENDS:
        raise UsageError(f"backend must be 'auto', {', '.join(map(repr, BACKENDS))}, got {name!r}")
    return BACKENDS[name]
