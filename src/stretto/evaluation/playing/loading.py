"""Loading: signs of life while code is loaded that may take longer than any step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOADING_SECONDS = 300.0
"""How long it may take to make a world, to load a policy, or to make the agents' policies of an episode."""

_BEAT_SECONDS = 0.2


class Loading:
    """Calls `beat` now and then while something is loaded, but not for ever.

    That is done by a thread, since loading keeps this one. It ends once nothing was loaded for a while. To start one each
    time would take 0.1 ms, and the agents' policies of every episode are loaded.
    """

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._lock = threading.Lock()
        self._until = 0.0  # by the monotonic clock; 0 while nothing is loaded
        self._lately = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Show signs of life while the body runs, which may be inside of another one."""
        outer = self._until
        with self._lock:
            self._until, self._lately = time.monotonic() + LOADING_SECONDS, True
            if self._thread is None:
                self._thread = threading.Thread(target=self._show, name="stretto-loading", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            self._until = outer

    def _show(self) -> None:
        while True:
            time.sleep(_BEAT_SECONDS)
            with self._lock:
                if not self._lately and not self._until:
                    self._thread = None
                    return
                self._lately = False
            if time.monotonic() < self._until:
                self._beat()
