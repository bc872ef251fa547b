"""Ctrl-C during a run: it ends with an interval, where all is consistent, if that is soon."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_SECONDS = 0.5
"""How long an interval may still take after Ctrl-C. A run is to be saved and over within 2 s, on a busy machine, too."""


@contextmanager
def interrupts_deferred(seconds: float = PATIENCE_SECONDS) -> Iterator[Callable[[], bool]]:
    """Let the body ask whether Ctrl-C was pressed; after so many seconds more, or a second one, it is interrupted anyway.

    In other threads than the main one, and where a program has a handler of its own, Ctrl-C does what it always does.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield lambda: False
        return
    pressed = threading.Event()
    over = threading.Event()
    main = threading.get_ident()

    def press_again() -> None:
        if not over.wait(seconds):
            signal.pthread_kill(main, signal.SIGINT)

    def take_note(_: int, __: Any) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, usual)
        threading.Thread(target=press_again, name="stretto-interrupt", daemon=True).start()

    signal.signal(signal.SIGINT, take_note)
    try:
        yield pressed.is_set
    finally:
        over.set()
        signal.signal(signal.SIGINT, usual)
