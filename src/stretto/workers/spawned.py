"""A process that the launcher has forked for a worker: its connection, its stack file, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
from collections.abc import Mapping

import psutil

from stretto.workers.arena import anonymous_file
from stretto.workers.launcher import EXIT_MARK, STACK_SIGNAL, Descriptors, kill_group, launcher

_KILL_SECONDS = 5.0
_STACK_SECONDS = 0.5


class SpawnedProcess:
    """It leads a process group, and is killed with it.

    Owned here: our end of the `connection` to it, its handle (pidfd) and the file that it writes its stack into. `let_go`
    gives them back; whoever takes the connection over closes that.
    """

    def __init__(self, shared: Mapping[str, int]) -> None:
        """Start it; it inherits the descriptors that are `shared`, by their names in `Descriptors`."""
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as theirs:
            self._stack_fd = anonymous_file("stretto-stack")
            on_failure.callback(os.close, self._stack_fd)
            ours, mail = socket.socketpair()
            theirs.callback(mail.close)
            on_failure.callback(ours.close)
            out, err = (_stream_fd(number, theirs) for number in (1, 2))
            fds = Descriptors(mail.fileno(), self._stack_fd, out, err, **shared)
            self.pid, self._launcher = launcher().spawn(fds)
            self._handle = _Handle(self.pid)
            on_failure.pop_all()
        self.connection = ours
        self._ended: str | None = None

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when it ends; -1 if there is none."""
        return self._handle.fd

    @property
    def told(self) -> bool:
        """Whether it was ended, and how that came about is known."""
        return self._ended is not None

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._handle.alive()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it came."""
        return self._handle.wait(seconds)

    def end_soon(self) -> None:
        """Kill it, and do not wait until it is gone."""
        self._handle.signal(signal.SIGKILL)

    def stack(self) -> str:
        """Return where its Python code stands now."""
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
        """Say how it ended; if it has not, kill it."""
        if self._ended is None:
            self._handle.signal(signal.SIGKILL)
            self._handle.wait(_KILL_SECONDS)
            self._ended = self._describe_end()
            if self._launcher.poll() is not None:
                # Its launcher, which would have ended the rest of its group, is gone.
                kill_group(self.pid)
        return self._ended

    def let_go(self) -> None:
        """Give back what belongs to a process that has ended, but for the connection; may be called twice."""
        if self._stack_fd >= 0:
            self._handle.close()
            os.close(self._stack_fd)
            self._stack_fd = -1

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


def _stream_fd(number: int, opened: contextlib.ExitStack) -> int:
    """Return this process's standard output or error, or something that takes its place if it was closed."""
    try:
        os.fstat(number)
    except OSError:
        number = os.open(os.devnull, os.O_WRONLY)
        opened.callback(os.close, number)
    return number


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
