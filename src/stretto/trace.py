"""Spans from every process on one clock, for Perfetto; nothing when off.

`active` is `None` unless a trace runs: code on a hot path tests just that. Times are `time.monotonic_ns()`, which
is one clock for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stretto.checkpoint import atomic_write

Span = tuple[str, int, int, int, int]
"""Name, start and duration in nanoseconds, process id, thread id."""


@dataclass
class Trace:
    """The spans recorded so far."""

    spans: list[Span] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def add(self, name: str, start_ns: int) -> None:
        """Record a span that began at `start_ns` and ends now."""
        self.spans.append((name, start_ns, time.monotonic_ns() - start_ns, os.getpid(), threading.get_native_id()))

    def save(self, path: str | Path) -> None:
        """Write the spans in the format that Perfetto and chrome://tracing open."""
        events: list[dict[str, object]] = [
            {"name": name, "ph": "X", "ts": start / 1000, "dur": duration / 1000, "pid": pid, "tid": tid}
            for name, start, duration, pid, tid in self.spans
        ]
        events += [
            {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in self.names.items()
        ]
        atomic_write(path, json.dumps({"traceEvents": events}))


active: Trace | None = None


def start() -> Trace:
    """Begin a trace in this process and in every worker that it talks to."""
    global active
    active = Trace(names={os.getpid(): "caller"})
    return active


def stop() -> Trace | None:
    """End the trace and return it."""
    global active
    ended, active = active, None
    return ended


@contextmanager
def span(name: str) -> Iterator[None]:
    """Record the body as a span, if a trace runs. For hot paths, test `active` and call `add` instead."""
    trace = active
    if trace is None:
        yield
        return
    began = time.monotonic_ns()
    try:
        yield
    finally:
        trace.add(name, began)
