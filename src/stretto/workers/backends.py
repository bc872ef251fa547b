"""The table of backends: where code runs that does not run in the caller."""

from __future__ import annotations

from stretto.errors import UsageError
from stretto.workers.base import Backend
from stretto.workers.message import MessageWorker
from stretto.workers.process import ProcessWorker
from stretto.workers.thread import ThreadWorker

SERIAL = Backend("serial", None)
THREAD = Backend("thread", ThreadWorker, caller_works=False)
PROCESS = Backend("process", ProcessWorker, pickles=True, killable=True)
MESSAGE_PROCESS = Backend("process", MessageWorker, pickles=True, shares_memory=False, killable=True)
"""Processes that share nothing with their caller, as if they were on another machine."""

BACKENDS = {backend.name: backend for backend in (SERIAL, THREAD, PROCESS)}


def backend_named(name: str) -> Backend:
    """Return the row with this name."""
    if name not in BACKENDS:
        raise UsageError(f"backend must be 'auto', {', '.join(map(repr, BACKENDS))}, got {name!r}")
    return BACKENDS[name]
