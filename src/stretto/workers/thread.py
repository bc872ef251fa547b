"""A worker that is a thread of the caller's process."""

from __future__ import annotations

import select
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from stretto.workers.arena import Arena
from stretto.workers.base import Port, Service, Start, Worker, serve
from stretto.workers.control import HEAD, MAIL, MESSAGE, WORKER_ASLEEP, Bell, control_bytes, fence
from stretto.workers.mail import Disconnected, LocalMail


class ThreadWorker(Worker):
    """Runs its service in a thread. A thread cannot be killed: one that hangs is left behind."""

    def __init__(
        self, index: int, capacity: int, arena: Arena, caller_bell: Bell, factory: Callable[[Port], Service]
    ) -> None:
        words = memoryview(bytearray(control_bytes(capacity))).cast("q")
        super().__init__(index, words, capacity, Bell.create())
        self._mail, theirs = LocalMail.pair()
        self._left = False
        port = Port(index, words, capacity, theirs, self.bell, caller_bell, arena)
        self._thread = threading.Thread(target=self._run, args=(port,), name=f"stretto-worker-{index}", daemon=True)
        self._thread.start()
        self.send(Start(factory))

    def _run(self, port: Port) -> None:
        try:
            serve(port, self._wait)
        except Disconnected:
            pass  # left behind by `kill`

    def _wait(self, port: Port, answered: int) -> int:
        words = port.words
        poller = select.poll()
        poller.register(port.bell.fd, select.POLLIN)
        while True:
            words[WORKER_ASLEEP] = 1
            fence()
            if words[HEAD] == answered and not self._left:
                poller.poll()
                port.bell.clear()
            words[WORKER_ASLEEP] = 0
            if self._left:
                raise Disconnected("the caller gave this thread up")
            if words[HEAD] > answered:
                return int(words[HEAD])

    def send(self, message: object, *, by_value: bool = True) -> int:
        self._mail.send(message)
        return self.signal(MESSAGE)

    def collect(self) -> list[Any]:
        sent = int(self.words[MAIL])
        frames = [self._mail.receive() for _ in range(sent - self.read)]
        self.read = sent
        return frames

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def kill(self) -> None:
        self._left = True
        self.bell.ring()

    def close(self, timeout: float) -> None:
        if self.bell.fd < 0:
            return
        self.kill()
        self._thread.join(timeout)
        if not self._thread.is_alive():  # else its descriptor stays open: the thread may still look at it
            self.bell.close()
