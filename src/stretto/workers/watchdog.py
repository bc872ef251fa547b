"""A dump of the stack for code in the caller's process that runs past its limit: it cannot be ended.

A thread looks at the workers whose service runs in the caller; these pay nothing for it but a flag around their work.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from stretto.workers.inline import InlineWorker

_LOOK_SECONDS = 0.25

Limit = Callable[[], float | None]
"""How long what the worker does now may go without a sign of progress, in seconds; `None`: for ever."""


class _Watch:
    """One worker, and since when it has not moved."""

    def __init__(self, worker: InlineWorker, limit: Limit, remedy: str) -> None:
        self.worker = worker
        self._limit = limit
        self._remedy = remedy
        self._seen = (0, 0, 0)
        self._since = 0.0
        self._told = False

    def look(self, now: float) -> None:
        seen = self.worker.progress
        if seen != self._seen or not self.worker.working:
            self._seen, self._since, self._told = seen, now, False
            return
        limit = self._limit()
        if limit is not None and now - self._since > limit and not self._told:
            self._told = True
            _dump(self.worker, limit, self._remedy)


_watches: dict[int, _Watch] = {}
_thread: threading.Thread | None = None
_changed = threading.Condition()


def watch(worker: InlineWorker, limit: Limit, remedy: str = "isolate=True") -> None:
    """From now on, write the stack of a worker that does not move for longer than its limit to stderr, once."""
    global _thread
    with _changed:
        _watches[id(worker)] = _Watch(worker, limit, remedy)
        if _thread is None:
            _thread = threading.Thread(target=_look_from_time_to_time, name="stretto-watchdog", daemon=True)
            _thread.start()


def leave(worker: InlineWorker) -> None:
    """Stop watching a worker; may be called for one that is not watched."""
    with _changed:
        _watches.pop(id(worker), None)
        _changed.notify()


def _look_from_time_to_time() -> None:
    global _thread
    while True:
        with _changed:
            if not _watches:
                _thread = None
                return
            _changed.wait(_LOOK_SECONDS)
            watches = list(_watches.values())
        now = time.monotonic()
        for one in watches:
            one.look(now)


def _dump(worker: InlineWorker, limit: float, remedy: str) -> None:
    stack = next((frame for frame in sys._current_frames().values() if _runs(frame, worker)), None)  # noqa: SLF001  there is no public way
    text = "(unknown)\n" if stack is None else "".join(traceback.format_stack(stack))
    sys.stderr.write(
        f"stretto: no answer for {limit:g} s {worker.port.place()}; it runs in the caller's process and cannot be ended "
        f"({remedy} would allow that). Its Python stack is:\n{text}"
    )
    sys.stderr.flush()


def _runs(frame: FrameType | None, worker: InlineWorker) -> bool:
    """Whether this thread is inside the worker's `work`."""
    while frame is not None:
        if frame.f_code is InlineWorker.work.__code__ and frame.f_locals.get("self") is worker:
            return True
        frame = frame.f_back
    return False


def _after_fork() -> None:
    global _thread, _changed
    _watches.clear()
    _thread, _changed = None, threading.Condition()


os.register_at_fork(after_in_child=_after_fork)
