"""A dump of the stack for code in the caller's process that runs past its deadline: it cannot be killed."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

_LOOK_SECONDS = 0.5

_running: dict[int, tuple[float, float, Callable[[], object]]] = {}
_owner = 0
_lock = threading.Lock()


def begin(timeout: float, place: Callable[[], object]) -> None:
    """Watch the calling thread from now on: after `timeout` seconds, its stack is written to stderr, once."""
    if _owner != os.getpid():
        _start()
    _running[threading.get_ident()] = (time.monotonic() + timeout, timeout, place)


def end() -> None:
    """Stop watching the calling thread."""
    _running.pop(threading.get_ident(), None)


def _start() -> None:
    global _owner
    with _lock:
        if _owner != os.getpid():
            _owner = os.getpid()
            _running.clear()
            threading.Thread(target=_watch, name="stretto-watchdog", daemon=True).start()


def _watch() -> None:
    while True:
        time.sleep(_LOOK_SECONDS)
        now = time.monotonic()
        for thread, (deadline, timeout, place) in list(_running.items()):
            if now > deadline and _running.pop(thread, None) is not None:
                _dump(thread, timeout, place)


def _dump(thread: int, timeout: float, place: Callable[[], object]) -> None:
    frame = sys._current_frames().get(thread)
    stack = "" if frame is None else "".join(traceback.format_stack(frame))
    sys.stderr.write(
        f"stretto: no answer for {timeout:g} s {place()}; it runs in the caller's process and cannot be ended "
        f"(isolate=True would allow that). Its Python stack is:\n{stack}"
    )
    sys.stderr.flush()
