"""A worker that is a process of its own: it can be killed, timed out and replaced."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from stretto.workers.arena import Arena, anonymous_file, reserve
from stretto.workers.base import Port, Service, Start, Stop, Worker
from stretto.workers.child import STACK_SIGNAL, Surroundings
from stretto.workers.control import MAIL, MESSAGE, Bell, control_bytes
from stretto.workers.launcher import launcher
from stretto.workers.mail import CallerMail, Disconnected

_KILL_SECONDS = 5.0
_STACK_SECONDS = 0.5


class ProcessWorker(Worker):
    """Runs its service in a process that the launcher forks. It leads a process group, and is killed with it.

    Owned here: the mail socket, the write end of the worker's bell, a handle of the process (pidfd) and the file
    that it writes its stack into. `kill` and `close` give all of them back.
    """

    def __init__(
        self,
        index: int,
        capacity: int,
        arena: Arena,
        caller_bell: Bell,
        factory: Callable[[Port], Service],
        *,
        spin_seconds: float = 0.0,
        start_timeout: float | None = 60.0,
    ) -> None:
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as theirs:
            control_fd = anonymous_file("stretto-control")
            theirs.callback(os.close, control_fd)
            reserve(control_fd, control_bytes(capacity))
            words = memoryview(mmap.mmap(control_fd, 0)).cast("q")
            read_fd, write_fd = os.pipe()
            theirs.callback(os.close, read_fd)
            on_failure.callback(os.close, write_fd)
            os.set_blocking(read_fd, False)
            os.set_blocking(write_fd, False)
            self._stack_fd = anonymous_file("stretto-stack")
            on_failure.callback(os.close, self._stack_fd)
            ours, mail = socket.socketpair()
            theirs.callback(mail.close)
            on_failure.callback(ours.close)
            super().__init__(index, words, capacity, Bell(-1, write_fd))
            self._mail = CallerMail(ours)
            fds = [mail.fileno(), control_fd, arena.fd, read_fd, caller_bell.write_fd, self._stack_fd]
            self._launcher = launcher()
            self._pid = self._launcher.spawn(fds, start_timeout)
            self._launcher_pid = self._launcher.pid
            self._handle = _Handle(self._pid)
            self._ended: str | None = None
            self._released = False
            on_failure.pop_all()
        with contextlib.suppress(Disconnected):  # it died already; whoever waits for it will see that
            self._mail.send(self._surroundings(spin_seconds), alive=self.alive)
            self.send(Start(factory))

    def _surroundings(self, spin_seconds: float) -> Surroundings:
        return Surroundings(
            index=self.index,
            environment=dict(os.environ),
            folder=os.getcwd(),
            import_path=[path or os.getcwd() for path in sys.path],
            arguments=list(sys.argv),
            log_level=logging.root.level,
            spin_seconds=spin_seconds,
        )

    @property
    def pid(self) -> int:
        return self._pid

    def send(self, message: object, *, by_value: bool = True) -> int:
        with contextlib.suppress(Disconnected):  # the same: a death is noticed by whoever waits
            self._mail.send(message, by_value=by_value, alive=self.alive)
        return self.signal(MESSAGE)

    def collect(self) -> list[Any]:
        announced, frames = int(self.words[MAIL]), []
        while True:
            self._mail.drain()
            while self._mail.waiting():
                frames.append(self._mail.receive())
            # What is announced has been written, but a socket gives a long frame out in pieces.
            if self.read + len(frames) >= announced or not self.alive():
                break
        self.read += len(frames)
        return frames

    def alive(self) -> bool:
        return self._ended is None and self._handle.alive()

    def watched(self) -> list[int]:
        return [fd for fd in (self._mail.fd, self._handle.fd) if fd >= 0]

    def stack(self) -> str:
        before = os.fstat(self._stack_fd).st_size
        self._handle.signal(STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_SECONDS
        size, last = before, -1
        while time.monotonic() < deadline and (size == before or size != last) and self.alive():
            time.sleep(0.01)
            last, size = size, os.fstat(self._stack_fd).st_size
        return os.pread(self._stack_fd, size - before, before).decode(errors="replace")

    def last_words(self) -> str:
        if self._ended is None:
            self._handle.signal(signal.SIGKILL)
            self._handle.wait(_KILL_SECONDS)
            self._ended = self._describe_end()
            if not self._launcher.alive() or self._launcher.pid != self._launcher_pid:
                # Its launcher, which would have ended the rest of its group, is gone.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, signal.SIGKILL)
        return self._ended

    def kill(self) -> None:
        self.last_words()
        if not self._released:
            self._released = True
            self._mail.close()
            self._handle.close()
            self.bell.close()
            os.close(self._stack_fd)

    def _describe_end(self) -> str:
        status = self._launcher.status(self._pid) if self._launcher.pid == self._launcher_pid else None
        if status is None:
            return "it ended, and its launcher with it"
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            told = f"it was killed by signal {number} ({signal.Signals(number).name})"
        else:
            told = f"it exited with code {os.WEXITSTATUS(status)}"
        stack = os.pread(self._stack_fd, 1 << 16, 0).decode(errors="replace")
        return f"{told}\n{stack.rstrip()}" if "Fatal Python error" in stack else told

    def ask_to_stop(self) -> None:
        """Let it close its service; `close` waits for that."""
        if self._ended is None:
            self.send(Stop())

    def close(self, timeout: float) -> None:
        if self._ended is not None:
            return
        if self.made == 0 or self.done < self.made:
            deadline = time.monotonic() + timeout
            while self.alive() and time.monotonic() < deadline:
                self.collect()  # it must not block on mail that nobody reads
                self._handle.wait(0.02)
        self.kill()


class _Handle:
    """Names one process for good: a pidfd where there are such, else its id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = -1
        self._gone = False
        if hasattr(os, "pidfd_open"):
            try:
                self.fd = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone = True

    def alive(self) -> bool:
        if not self._gone:
            self._gone = self.wait(0.0)
        return not self._gone

    def wait(self, seconds: float) -> bool:
        """Wait for the process's end; return whether it came."""
        if self._gone:
            return True
        if self.fd >= 0:
            poller = select.poll()
            poller.register(self.fd, select.POLLIN)
            return bool(poller.poll(seconds * 1000))
        deadline = time.monotonic() + seconds
        while True:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._gone:
                return
            if self.fd >= 0:
                signal.pidfd_send_signal(self.fd, number)
            else:
                os.kill(self.pid, number)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self._gone = -1, True
