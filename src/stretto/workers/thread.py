"""A worker that is a thread of the caller's process."""

from __future__ import annotations

import contextlib
import ctypes
import select
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from stretto.errors import ResourceError
from stretto.seeding import take_turn_from, waits_for_turn
from stretto.workers.arena import Arena
from stretto.workers.base import Abandoned, Port, Service, Start, Worker, serve
from stretto.workers.control import HEAD, MAIL, MESSAGE, WORKER_ASLEEP, Bell, control_bytes, fence
from stretto.workers.mail import LocalMail
from stretto.workers.resources import resources

_LOOK_MILLISECONDS = 250
"""How often a thread that has nothing to do looks whether it was left."""


class ThreadWorker(Worker):
    """Runs its service in a thread. A thread cannot be killed: one that hangs is left behind.

    `Abandoned` is raised in one that was left as soon as its code comes back, before that can write anything into
    the arrays, which by then belong to another thread. Its bell is closed when both sides have let go of it.
    """

    def __init__(
        self, index: int, capacity: int, arena: Arena, caller_bell: Bell, factory: Callable[[Port], Service]
    ) -> None:
        words = memoryview(bytearray(control_bytes(capacity))).cast("q")
        with resources("a worker thread"):
            bell = Bell.create()
        super().__init__(index, words, capacity, bell)
        self._mail = LocalMail()
        self._left = False
        port = Port(index, words, capacity, self._mail, self.bell, caller_bell, arena)
        self._thread = threading.Thread(target=self._run, args=(port,), name=f"stretto-worker-{index}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ResourceError(f"no further thread can be started ({error}); use fewer workers") from None
        self.send(Start(factory))

    def _run(self, port: Port) -> None:
        with contextlib.suppress(Abandoned):
            serve(port, self._wait)

    def _wait(self, port: Port, answered: int) -> int:
        words = port.words
        poller = select.poll()
        poller.register(port.bell.fd, select.POLLIN)
        while True:
            words[WORKER_ASLEEP] = 1
            fence()
            if words[HEAD] == answered and not self._left:
                poller.poll(_LOOK_MILLISECONDS)
                port.bell.clear()
            words[WORKER_ASLEEP] = 0
            if self._left:
                raise Abandoned
            if words[HEAD] > answered:
                return int(words[HEAD])

    def send(self, message: object, *, by_value: bool = True) -> int:
        self._mail.post(message, self.made + 1)
        return self.signal(MESSAGE)

    def collect(self) -> list[Any]:
        self.read = int(self.words[MAIL])
        return self._mail.collect()

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001  there is no public way
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def waits(self) -> bool:
        return waits_for_turn(sys._current_frames().get(self._thread.ident or 0))  # noqa: SLF001  the same

    def last_words(self) -> str:
        return "it was left behind" if self._left else super().last_words()

    def kill(self) -> None:
        if not self._left and self._thread.is_alive():
            self._left = True
            assert self._thread.ident is not None
            take_turn_from(self._thread.ident)
            # A world that catches even this goes on; one whose C code never returns was never here to catch it.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(Abandoned))

    def close(self, timeout: float) -> None:
        if self.bell.fd < 0 or self._left:
            return
        self.stop()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.kill()
        else:
            self.bell.close()
