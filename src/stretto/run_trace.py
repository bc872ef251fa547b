"""The spans of a run: loading, episodes, and every step of its policies and worlds. Without a trace, none of this runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from stretto import trace
from stretto.core import AgentWorld
from stretto.errors import UsageError
from stretto.policies.questions import Runner
from stretto.workers.base import Port, Service, Spans

__calls_user_code__ = True

T = TypeVar("T")

TRACE = "trace.json"

_BELOW = "policies: "
"""How the spans of processes begin in which a worker of the run lets policies choose."""


def trace_path(wanted: str | Path | bool, out: str | Path | None) -> Path | None:
    """Return the file that a trace is written to: the one that is named, or else one in the folder of the run."""
    if wanted is False:
        return None
    if wanted is True:
        if out is None:
            raise UsageError("a trace is written into the folder of the run, got none; name a file for it")
        return Path(out) / TRACE
    path = Path(wanted)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"a trace is written to a file in a folder that exists, got {str(wanted)!r}; name another one")
    return path


@contextmanager
def traced(path: Path | None, run: str) -> Iterator[None]:
    """Write what all processes do while the body runs to a file, whether it ends well or not; `None`: nothing.

    `run` is what the span of all of it is called.
    """
    if path is None:
        yield
        return
    if trace.active is not None:
        raise UsageError("only one trace can run at a time, and one does already; end it with stretto.trace.stop()")
    log = trace.start()
    try:
        with trace.span(run):
            yield
    finally:
        trace.stop()
        for name, _, _, process, _ in log.spans:
            if name.startswith(_BELOW):
                log.names[process] = f"policies of {log.names[process].rpartition(' of ')[2]}"
        if path.parent.is_dir():  # a run that was refused leaves no folder, and has nothing to show
            log.save(path)


class TracedService:
    """A service whose spans reach the caller before its answers do: what came later could be left unread.

    `describe` names a message: what is done for it is one span, with everything else inside.
    """

    def __init__(self, port: Port, service: Service, describe: Callable[[Any], str]) -> None:
        self._port, self._service, self._describe = port, service, describe

    def handle(self, message: Any) -> object:
        if not self._port.tracing:
            return self._service.handle(message)
        with self._sent(), trace.span(self._describe(message)):
            return self._service.handle(message)

    def signal(self, code: int) -> object:
        return self._service.signal(code)

    def close(self) -> None:
        self._service.close()

    @contextmanager
    def _sent(self) -> Iterator[None]:
        """Send what this process, and those that it asks in turn, record in the body; in the caller's own it is there."""
        if not self._port.pickles:
            yield
            return
        log = trace.start()
        try:
            yield
        finally:
            trace.stop()
            processes: dict[int, list[trace.Span]] = {}
            for name, start, duration, process, thread in log.spans:
                shown = name if process == os.getpid() else _BELOW + name
                processes.setdefault(process, []).append((shown, start, duration, process, thread))
            for spans in processes.values():  # one at a time: the caller names a process by its first span
                self._port.send(Spans(spans))


def traced_world(world: AgentWorld) -> AgentWorld:
    """Return a world whose resets and steps are recorded, if a trace runs."""
    return world if trace.active is None else cast(AgentWorld, _Recorded(world, _WORLD))


def traced_runner(runner: Runner) -> Runner:
    """Return a runner whose steps are recorded, if a trace runs."""
    return runner if trace.active is None else cast(Runner, _Recorded(runner, _POLICY))


def traced_worlds(worlds: T) -> T:
    """Return worlds by blocks whose resets and steps are recorded, if a trace runs."""
    return worlds if trace.active is None else cast(T, _Recorded(worlds, _WORLDS))


def traced_call(function: Callable[..., T], name: str) -> Callable[..., T]:
    """Return a function whose calls are recorded, if a trace runs."""
    if trace.active is None:
        return function

    def call(*args: Any, **kwargs: Any) -> T:
        with trace.span(name):
            return function(*args, **kwargs)

    return call


_WORLD = {"reset": "world reset", "step": "world step"}
_WORLDS = {"reset": "world reset", "exchange": "world step"}
_POLICY = {"begin": "policy begin", "ask": "policy ask", "replies": "policy step", "act_block": "policy step"}


class _Recorded:
    """Passes everything on, and records calls of some methods as spans."""

    def __init__(self, inner: Any, names: Mapping[str, str]) -> None:
        self._inner, self._names = inner, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)  # looked up each time: a runner may replace its own
        return traced_call(found, self._names[name]) if name in self._names else found
