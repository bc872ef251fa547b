"""The table of backends: where code runs that does not run in the caller."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stretto.errors import UsageError
from stretto.workers.base import Backend, Factory, Worker
from stretto.workers.message import MessageWorker
from stretto.workers.process import ProcessWorker
from stretto.workers.thread import ThreadWorker

if TYPE_CHECKING:
    from stretto.workers.cluster import Cluster

SERIAL = Backend("serial", None)
THREAD = Backend("thread", ThreadWorker, caller_works=False)
PROCESS = Backend("process", ProcessWorker, pickles=True, killable=True)
MESSAGE_PROCESS = Backend("process", MessageWorker, pickles=True, shares_memory=False, killable=True)
"""Processes that share nothing with their caller, as if they were on another machine."""


def _on_a_node(
    index: int,
    capacity: int,
    _arena: Any,
    _bell: Any,
    factory: Factory,
    *,
    cluster: Cluster | None = None,
    **settings: Any,
) -> Worker:
    """Start a worker on a cluster: the one that was opened last, unless it is given."""
    from stretto.workers.cluster import current_cluster  # which most programs never need
    from stretto.workers.ray import RayWorker

    return RayWorker(cluster or current_cluster(), index, capacity, factory, settings.get("native_threads", 1))


RAY = Backend("ray", _on_a_node, pickles=True, shares_memory=False, killable=True, caller_works=False)

BACKENDS = {backend.name: backend for backend in (SERIAL, THREAD, PROCESS, RAY)}


def on_cluster(cluster: Cluster) -> Backend:
    """Return the row of workers on this cluster."""
    return replace(RAY, start=partial(_on_a_node, cluster=cluster))


def backend_named(name: str) -> Backend:
    """Return the row with this name."""
    if name not in BACKENDS:
        raise UsageError(f"backend must be 'auto', {', '.join(map(repr, BACKENDS))}, got {name!r}")
    return BACKENDS[name]
