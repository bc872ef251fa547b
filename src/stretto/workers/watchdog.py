"""A dump of the stack for code in the caller's process that runs past its limit: it cannot be ended.

A thread looks at a worker whose service runs in the caller; this pays nothing for it but a flag around its work.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import FrameType

from stretto.workers.inline import InlineWorker

_LOOK_SECONDS = 0.25

_AT_WORK = (InlineWorker.work.__code__, InlineWorker.do.__code__)

Limit = Callable[[], float | None]
"""How long what the worker does now may go without a sign of progress, in seconds; `None`: for ever."""


def watch(worker: InlineWorker, limit: Limit, remedy: str) -> None:
    """From now to its end, write the stack of a worker that does not move for longer than its limit to stderr, once."""
    arguments = worker.ended, weakref.ref(worker), limit, remedy
    threading.Thread(target=_look_until_its_end, args=arguments, name="stretto-watchdog", daemon=True).start()


def _look_until_its_end(
    ended: threading.Event, reference: weakref.ref[InlineWorker], limit: Limit, remedy: str
) -> None:
    seen, since, shown = (0, 0, 0), 0.0, False
    while not ended.wait(_LOOK_SECONDS) and (worker := reference()) is not None:
        now, seconds = time.monotonic(), limit()
        if worker.progress != seen or not worker.working:
            seen, since, shown = worker.progress, now, False
        elif seconds is not None and now - since > seconds and not shown:
            shown = True
            _dump(worker, seconds, remedy)
        del worker  # or this thread would keep it, and the memory that it shares, until it looks again


def _dump(worker: InlineWorker, limit: float, remedy: str) -> None:
    stack = next((frame for frame in sys._current_frames().values() if _runs(frame, worker)), None)  # noqa: SLF001  there is no public way
    text = "(unknown)\n" if stack is None else "".join(traceback.format_stack(stack))
    sys.stderr.write(
        f"stretto: no answer for {limit:g} s {worker.port.place()}; it runs in the caller's process and cannot be ended "
        f"({remedy} would allow that). Its Python stack is:\n{text}"
    )
    sys.stderr.flush()


def _runs(frame: FrameType | None, worker: InlineWorker) -> bool:
    """Whether this thread is at work for the worker."""
    while frame is not None:
        if frame.f_code in _AT_WORK and frame.f_locals.get("self") is worker:
            return True
        frame = frame.f_back
    return False
