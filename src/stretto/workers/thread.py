"""A worker that is a thread of the caller's process."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import traceback
from typing import Any

from stretto.budget import NativeThreads, share_native_threads
from stretto.errors import ResourceError, resources
from stretto.seeding import take_turn_from, waits_for_turn
from stretto.workers.arena import Arena
from stretto.workers.base import Factory, Port, Start, Worker
from stretto.workers.control import Bell, private_words
from stretto.workers.mail import Disconnected, LocalMail
from stretto.workers.serving import Abandoned, Host, serve
from stretto.workers.waiting import wait_for_requests


class ThreadWorker(Worker):
    """Runs its service in a thread. A thread cannot be killed: one that hangs is left behind.

    `Abandoned` is raised in one that was left as soon as its code comes back, before that can write anything into
    the arrays, which by then belong to another thread. Its bell is closed when both sides have let go of it.
    """

    def __init__(
        self,
        index: int,
        capacity: int,
        arena: Arena,
        caller_bell: Bell,
        factory: Factory,
        *,
        native_threads: int = 1,
        **_: Any,
    ) -> None:  # `spin_seconds` is not for threads: one that looks again and again keeps all others from running
        with resources("a worker thread"):
            bell = Bell.create()
        super().__init__(index, private_words(capacity), LocalMail(), bell)
        self._left = False
        self._native = NativeThreads(native_threads)
        share_native_threads()
        port = Port(index, self.words, self._mail, bell, caller_bell, arena)
        self._thread = threading.Thread(
            target=_run, args=(port, self._native), name=f"stretto-worker-{index}", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ResourceError(f"no further thread can be started ({error}); use fewer workers") from None
        self.send(Start(factory))

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
            self._native.let_go()  # one that never comes back must not keep the caller's pools small
            self.bell.close_writer()  # one that has nothing to do ends

    def wait_gone(self, timeout: float) -> None:
        self._thread.join(timeout)

    def close(self, timeout: float) -> None:
        if self.bell.fd < 0 or self._left:
            return
        self.stop()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.kill()
        else:
            self.bell.close()


class _ThreadHost(Host):
    """Caps native threads while it answers. It lets go before the caller sees the answer and computes with its own number."""

    def __init__(self, port: Port, native: NativeThreads) -> None:
        super().__init__(port)
        self._native = native

    def answer(self, number: int, code: int) -> None:
        self._native.cap()  # each time: a world may have imported torch since
        try:
            super().answer(number, code)
        finally:
            self._native.let_go()  # the thread's own limits stay as they are


def _run(port: Port, native: NativeThreads) -> None:
    with contextlib.suppress(Abandoned, Disconnected):
        serve(_ThreadHost(port, native), wait_for_requests(0.0))
