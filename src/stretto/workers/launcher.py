"""The launcher: a process that starts workers fast, and without running the user's main module again.

It is a fresh interpreter that has imported what every worker needs, has no threads, and forks on request; a further
worker takes milliseconds. It touches no global start method, and neither does it inherit the caller's locks, so it
works from daemonic processes, from notebooks, and after other libraries have started threads.

It is the parent of the workers, hence it is the one that reaps them: it kills the whole process group of a worker
that exited while that worker's id cannot yet be in use again. It ends all of them when its own parent is gone.
If it is killed itself, the kernel ends its workers, and the caller starts a new launcher and recovers them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from dataclasses import dataclass
from typing import NamedTuple, Self

from stretto.budget import native_thread_variables
from stretto.errors import LauncherFailed, ResourceError
from stretto.workers.resources import resources

_RECORD = struct.Struct("<qqq")
_SPAWNED, _REFUSED, _EXITED = 1, 2, 3
_REQUEST = struct.Struct("<qq")
"""The number of a request, and which descriptors come with it: a bit for each."""

_PARENT_CHECK_SECONDS = 0.2

STACK_SIGNAL = signal.SIGUSR2
"""Makes a worker write its Python stack into the file that it shares with the caller."""

_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from stretto.workers.launcher import main; main()"


class Descriptors(NamedTuple):
    """What a worker inherits; -1 where it has none: one that has messages alone shares no memory and has no bells."""

    mail: int
    stack: int
    out: int
    err: int
    control: int = -1
    arena: int = -1
    bell: int = -1
    caller_bell: int = -1

    @property
    def bits(self) -> int:
        """Which of them there are."""
        return sum(1 << i for i, fd in enumerate(self) if fd >= 0)

    @classmethod
    def received(cls, bits: int, fds: list[int]) -> Self:
        """Name those that came with a request."""
        rest = iter(fds)
        return cls(*(next(rest) if bits >> i & 1 else -1 for i in range(len(cls._fields))))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a worker takes over from its caller before it does anything."""

    index: int
    environment: dict[str, str]
    folder: str
    import_path: list[str]
    arguments: list[str]
    log_levels: dict[str, int]
    spin_seconds: float
    native_threads: int


def log_levels() -> dict[str, int]:
    """Return the levels that loggers of this process were given; the root's name is empty."""
    named = logging.root.manager.loggerDict
    levels = {name: logger.level for name, logger in list(named.items()) if isinstance(logger, logging.Logger)}
    return {"": logging.root.level, **{name: level for name, level in levels.items() if level}}


class Launcher:
    """The caller's end. Use `launcher()`: there is one a process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._requests = 0
        self._buffer = b""
        self._spawned: dict[int, int] = {}
        self._statuses: dict[int, int] = {}

    @property
    def pid(self) -> int | None:
        """The launcher's process id, once it was started."""
        return None if self._process is None else self._process.pid

    def spawn(self, fds: Descriptors, timeout: float | None) -> int:
        """Start a worker that inherits `fds`; return its process id.

        Raises:
            ResourceError: if the system allows no further process or descriptor.
            LauncherFailed: if the launcher itself cannot be started, or does not answer.
        """
        with self._lock:
            for attempt in (1, 2, 3):
                try:
                    return self._spawn(fds, timeout)
                except LauncherFailed:
                    self._forget()  # the next one to ask gets another
                    raise
                except ConnectionError:
                    self._forget()
                    if attempt == 3:
                        raise LauncherFailed("the launcher of worker processes died three times in a row") from None
        raise AssertionError("unreachable")

    def _spawn(self, fds: Descriptors, timeout: float | None) -> int:
        channel = self._start()
        self._requests += 1
        number = self._requests
        try:
            socket.send_fds(channel, [_REQUEST.pack(number, fds.bits)], [fd for fd in fds if fd >= 0])
        except ConnectionError:
            raise
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise ConnectionError from error
            raise ResourceError(f"no more descriptors can be passed to workers ({error.strerror})") from None
        deadline = None if timeout is None else time.monotonic() + timeout
        while number not in self._spawned:
            self._read(deadline)
        pid = self._spawned.pop(number)
        if pid < 0:
            raise ResourceError(f"no further worker process can be started ({os.strerror(-pid)})")
        return pid

    def status(self, pid: int, timeout: float = 0.5) -> int | None:
        """Return the wait status of a worker that has exited, or `None` if the launcher cannot tell."""
        with self._lock:
            deadline = time.monotonic() + timeout
            while pid not in self._statuses and self._socket is not None:
                try:
                    self._read(deadline)
                except ConnectionError:
                    self._forget()
                except LauncherFailed:
                    break
            return self._statuses.pop(pid, None)

    def _start(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        with resources("the launcher of worker processes"):
            return self._start_process()

    def _start_process(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _BOOT,
                    json.dumps(sys.path),
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **native_thread_variables(1), "PYTHONHASHSEED": _hash_seed()},
                start_new_session=True,
            )
        except BaseException as error:
            ours.close()
            if isinstance(error, PermissionError | FileNotFoundError):
                raise LauncherFailed(f"the launcher of worker processes cannot be started: {error}") from None
            raise
        finally:
            theirs.close()
        self._socket = ours
        return ours

    def _read(self, deadline: float | None) -> None:
        assert self._socket is not None
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if not poller.poll(None if left is None else left * 1000):
            raise LauncherFailed("the launcher of worker processes does not answer")
        data = self._socket.recv(_RECORD.size * 64)
        if not data:
            raise ConnectionResetError
        self._buffer += data
        while len(self._buffer) >= _RECORD.size:
            kind, key, value = _RECORD.unpack_from(self._buffer)
            self._buffer = self._buffer[_RECORD.size :]
            if kind == _EXITED:
                self._statuses[key] = value
            else:
                self._spawned[key] = value if kind == _SPAWNED else -value

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
        self._socket, self._process, self._buffer = None, None, b""
        self._statuses.clear()

    def alive(self) -> bool:
        """Whether it runs now."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End the launcher and every worker that is left; may be called twice."""
        if self.owner == os.getpid():
            with self._lock:
                self._forget()


class _Process:
    """This process, as something that a finalizer can be tied to."""


_process = _Process()


def _hash_seed() -> str:
    """Give strings the same hashes in all workers, of this launcher and of the next: sets of them keep their order."""
    seed = os.environ.get("PYTHONHASHSEED", "random")
    return "0" if seed in ("", "random") else seed


_launcher: Launcher | None = None
_launcher_lock = threading.Lock()


def launcher() -> Launcher:
    """Return this process's launcher; a process that was forked off gets one of its own."""
    global _launcher
    with _launcher_lock:
        if _launcher is None:
            _launcher = Launcher()
            # At exit finalizers run the newest first: the vector environments close their worlds before this.
            weakref.finalize(_process, _launcher.close)
        return _launcher


def _after_fork() -> None:
    global _launcher, _launcher_lock
    _launcher, _launcher_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


# ---- the launcher's own process ----


def main() -> None:
    """Serve requests for workers until the caller has gone."""
    # What reaches the caller (Ctrl-C) is the caller's to act on; and signals that it blocks are not blocked here.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    channel = socket.socket(fileno=int(sys.argv[2]))
    caller = int(sys.argv[3])
    from stretto.workers import preload  # noqa: F401  what every worker needs, imported once

    _Nursery(channel, caller).run()


class _Nursery:
    """Forks workers, reaps them, and ends them with the caller."""

    def __init__(self, channel: socket.socket, caller: int) -> None:
        self.channel = channel
        self.caller = caller
        self.pid = os.getpid()
        self.children: set[int] = set()
        self.wake_read, self.wake_write = os.pipe()
        for fd in (self.wake_read, self.wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def run(self) -> None:
        import gc

        gc.freeze()  # fewer pages are copied in the children
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        poller.register(self.wake_read, select.POLLIN)
        while os.getppid() == self.caller:
            for fd, _ in poller.poll(_PARENT_CHECK_SECONDS * 1000):
                if fd == self.wake_read:
                    os.read(self.wake_read, 4096)
                elif not self.serve():
                    self.end()
                    return
            self.reap()
        self.end()

    def serve(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self.channel, _REQUEST.size, len(Descriptors._fields))
        except ConnectionError:
            return False
        if not data:
            return False
        number, bits = _REQUEST.unpack(data)
        try:
            if len(fds) < bits.bit_count():  # the kernel drops those that exceed the limit of this process
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = os.fork()
        except OSError as error:
            self.tell(_REFUSED, number, error.errno or errno.EAGAIN)
        else:
            if pid == 0:
                self.become_worker(Descriptors.received(bits, fds))
            self.children.add(pid)
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            self.tell(_SPAWNED, number, pid)
        for fd in fds:
            os.close(fd)
        return True

    def become_worker(self, fds: Descriptors) -> None:
        from stretto.workers.child import run_worker

        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.channel.close()
            os.close(self.wake_read)
            os.close(self.wake_write)
            for fd in fds:
                if fd >= 0:
                    os.set_inheritable(fd, False)  # a program that a world starts must not keep them open
            # If the launcher has died since, the caller has had another worker started with these descriptors.
            run_worker(fds, self.pid)
            code = 0
        except BaseException:  # noqa: BLE001  ours, not the world's: it goes where the caller finds it with the worker's end
            os.write(fds.stack, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def reap(self) -> None:
        while self.children:
            try:
                exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if exited is None:
                return
            self.kill_group(exited.si_pid)  # before it is reaped: its id cannot belong to anybody else yet
            _, status = os.waitpid(exited.si_pid, 0)
            self.children.discard(exited.si_pid)
            self.tell(_EXITED, exited.si_pid, status)

    def kill_group(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def end(self) -> None:
        for pid in self.children:
            self.kill_group(pid)

    def tell(self, kind: int, key: int, value: int) -> None:
        # The caller reads when it next asks; it may have gone.
        with contextlib.suppress(OSError):
            self.channel.send(_RECORD.pack(kind, key, value), socket.MSG_DONTWAIT if kind == _EXITED else 0)
