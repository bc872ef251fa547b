"""A worker that is a process of its own: it can be killed, timed out and replaced."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import signal
import socket
import sys
import time
from typing import Any

import psutil

from stretto.errors import UsageError
from stretto.workers.arena import Arena, anonymous_file, reserve, resources
from stretto.workers.base import Factory, Start, Worker
from stretto.workers.control import MAIL, MESSAGE, Bell, control_bytes
from stretto.workers.launcher import EXIT_MARK, STACK_SIGNAL, Descriptors, kill_group, launcher
from stretto.workers.mail import CallerMail, dump
from stretto.workers.surroundings import Surroundings

_KILL_SECONDS = 5.0
_STACK_SECONDS = 0.5


class ProcessWorker(Worker):
    """Runs its service in a process that the launcher forks. It leads a process group, and is killed with it.

    Owned here: the mail socket, the write end of the worker's bell, a handle of the process (pidfd) and the file
    that it writes its stack into. `kill` and `close` give all of them back.
    """

    _mail: CallerMail

    def __init__(
        self,
        index: int,
        capacity: int,
        arena: Arena,
        caller_bell: Bell,
        factory: Factory,
        *,
        spin_seconds: float = 0.0,
        native_threads: int = 1,
    ) -> None:
        start = _pickled(Start(factory))
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as theirs, resources("a worker process"):
            words, bell, shared = self._share(capacity, arena, caller_bell, theirs)
            on_failure.callback(bell.close)
            self._stack_fd = anonymous_file("stretto-stack")
            on_failure.callback(os.close, self._stack_fd)
            ours, mail = socket.socketpair()
            theirs.callback(mail.close)
            on_failure.callback(ours.close)
            super().__init__(index, words, CallerMail(ours), bell)
            out, err = (_stream_fd(number, theirs) for number in (1, 2))
            fds = Descriptors(mail.fileno(), self._stack_fd, out, err, **shared)
            self._pid, self._launcher = launcher().spawn(fds)
            self._handle = _Handle(self._pid)
            self._unbroken = _EndIfCutShort(self._handle)
            self._ended: str | None = None
            self._cpu_seconds = 0.0
            on_failure.pop_all()
        bell.close_reader()  # it is the worker's
        try:
            self._mail.post(dump(Surroundings.of_this_process(index, spin_seconds, native_threads)))
            self.post(start)
        except BaseException:
            self.kill()
            raise

    def _share(
        self, capacity: int, arena: Arena, caller_bell: Bell, theirs: contextlib.ExitStack
    ) -> tuple[memoryview, Bell, dict[str, int]]:
        """Return the control words, the worker's bell, and the descriptors of all that the worker shares with us."""
        control_fd = anonymous_file("stretto-control")
        theirs.callback(os.close, control_fd)
        reserve(control_fd, control_bytes(capacity))
        words = memoryview(mmap.mmap(control_fd, 0)).cast("q")
        bell = Bell.create()
        shared = {"control": control_fd, "arena": arena.fd, "bell": bell.fd, "caller_bell": caller_bell.write_fd}
        return words, bell, shared

    @property
    def pid(self) -> int:
        return self._pid

    def cpu_seconds(self) -> float:
        if not sys.platform.startswith("linux"):
            return 0.0
        with contextlib.suppress(OSError):  # it has ended
            self._cpu_seconds = time.clock_gettime(~self._pid << 3 | 2)  # how Linux numbers the CPU clocks of processes
        return self._cpu_seconds

    def send(self, message: object, *, by_value: bool = True) -> int:
        return self.post(dump(message, by_value))

    def post(self, data: bytes) -> int:
        with self._unbroken:
            self._mail.post(data)
            return self.signal(MESSAGE)

    def exchange(self) -> bool:
        with self._unbroken:
            self._mail.flush()
            return self._mail.drain()

    @property
    def unsent_fd(self) -> int:
        return self._mail.fd if self._mail.unsent else -1

    def collect(self) -> list[Any]:
        announced, frames = int(self.words[MAIL]), []
        with self._unbroken:
            while True:
                self._mail.drain()
                frames += self._mail.collect()
                # What is announced has been written, but a socket may give a long frame out in pieces.
                if self.read + len(frames) >= announced or not self.alive():
                    break
            self.read += len(frames)
        return frames

    def alive(self) -> bool:
        # One that closed its end of the connection can be told nothing more: `last_words` will end it.
        return self._ended is None and not self._mail.ended and self._handle.alive()

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
        return self._written().partition(EXIT_MARK)[0][before:].decode(errors="replace")

    def _written(self) -> bytes:
        """Return what the worker and its launcher have written into the stack file."""
        return os.pread(self._stack_fd, os.fstat(self._stack_fd).st_size, 0)

    def last_words(self) -> str:
        if self._ended is None:
            self._handle.signal(signal.SIGKILL)
            self._handle.wait(_KILL_SECONDS)
            self._ended = self._describe_end()
            if self._launcher.poll() is not None:
                # Its launcher, which would have ended the rest of its group, is gone.
                kill_group(self._pid)
        return self._ended

    def kill(self) -> None:
        self.last_words()
        if self._mail.fd >= 0:
            self._mail.close()
            self._handle.close()
            self.bell.close()
            os.close(self._stack_fd)

    def _describe_end(self) -> str:
        """Say what its launcher has written of its end, and the stack of a crash in C, or what else is in the file."""
        deadline = time.monotonic() + _STACK_SECONDS
        while True:
            launcher_is_gone = self._launcher.poll() is not None
            stack, *rest = self._written().split(EXIT_MARK)
            if len(rest) == 2:
                break
            if launcher_is_gone or time.monotonic() > deadline:
                return "it ended, and its launcher with it"
            time.sleep(0.001)
        code = int(rest[0])
        name = next((one.name for one in signal.Signals if one == -code), "unnamed")
        how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code} ({name})"
        return f"it {how}\n{stack.decode(errors='replace')}".rstrip()

    def close(self, timeout: float) -> None:
        if self._ended is not None:
            return
        self.stop()
        deadline = time.monotonic() + timeout
        while self._handle.alive() and time.monotonic() < deadline:
            self.exchange()  # it must not wait for somebody who reads
            self._handle.wait(0.02)
        self.exchange()
        self.kill()


def _stream_fd(number: int, opened: contextlib.ExitStack) -> int:
    """Return this process's standard output or error, or something that takes its place if it was closed."""
    try:
        os.fstat(number)
    except OSError:
        number = os.open(os.devnull, os.O_WRONLY)
        opened.callback(os.close, number)
    return number


def _pickled(start: Start) -> bytes:
    try:
        return dump(start, by_value=True)
    except Exception as error:  # whatever the __reduce__ of something in it raises
        raise UsageError(
            f"what runs in another process must be picklable, and this is not: {type(error).__name__}: {error}; make "
            f"such objects inside the function that makes the world, or use backend='serial' or 'thread'"
        ) from error


class _EndIfCutShort:
    """Ends a worker after Ctrl-C in the middle of its mail: nobody knows how much of a message went over."""

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._handle.signal(signal.SIGKILL)


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
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a container that forbids it
                    raise

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
        while psutil.pid_exists(self.pid):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)
        return True

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
