"""The launcher: a process that starts workers fast, and without running the user's main module again. Its caller's end.

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
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from typing import NamedTuple

from stretto import hash_seed
from stretto.budget import native_thread_variables
from stretto.errors import LauncherFailed, ResourceError, resources

PAIR = struct.Struct("<qq")
"""A request: its number, and how many descriptors come with it. The reply: the same number, and a process id or -errno.

A module to import is the number 0 and the length of its name, which follows. It has no reply.
"""

_IMPORTED_TO_DIFFERENTIATE = "torch.fx.experimental.symbolic_shapes"

_ANSWER_SECONDS = 60.0
"""How long the launcher may take to answer: at first it imports numpy and gymnasium."""

STACK_SIGNAL = signal.SIGUSR2
"""Makes a worker write its Python stack into the file that it shares with the caller."""

EXIT_MARK = b"\0"
"""Stands around the exit code (of a signal: -number) that the launcher writes behind that when the worker has exited."""

# What reaches the caller (Ctrl-C) is the caller's to act on, from the first moment.
_BOOT = """import sys, json, signal; signal.signal(signal.SIGINT, lambda *_: None)
sys.path[:] = json.loads(sys.argv[1]); from stretto.workers.fork_server import main; main()"""


class Descriptors(NamedTuple):
    """What a worker inherits; one that has messages alone shares no memory and has no bells."""

    mail: int
    stack: int
    out: int
    err: int
    control: int = -1
    arena: int = -1
    bell: int = -1
    caller_bell: int = -1


class Launcher:
    """The caller's end. Use `launcher()`: there is one a process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._requests = 0
        self._preloads: list[str] = []

    @property
    def pid(self) -> int | None:
        """The launcher's process id, once it was started."""
        return None if self._process is None else self._process.pid

    def preload(self, module: str) -> None:
        """Let the launcher import a module, so that no worker has to. One that runs already does it at once."""
        with self._lock:
            if module in self._preloads:
                return
            self._preloads.append(module)
            if self._socket is not None:
                name = module.encode()
                with contextlib.suppress(OSError):  # whoever asks for a worker finds out, and starts another launcher
                    self._socket.sendall(PAIR.pack(0, len(name)) + name)

    def preload_torch(self) -> None:
        """Let the launcher import torch, and what torch imports when it differentiates first: 1.2 to 2 s for each worker.

        For workers that learn. All others start later, by some milliseconds, if there is more to fork. macOS does not let
        anybody fork what has loaded the libraries that torch uses there.
        """
        if sys.platform == "linux":
            self.preload("torch")
            self.preload(_IMPORTED_TO_DIFFERENTIATE)

    def start(self) -> None:
        """Start the launcher now, unless it runs: it gets ready while its caller does something else.

        Raises:
            ResourceError: if the system allows no further process or descriptor.
            LauncherFailed: if it cannot be started.
        """
        with self._lock:
            if self._socket is None:
                self._start()

    def spawn(self, fds: Descriptors) -> tuple[int, subprocess.Popen[bytes]]:
        """Start a worker that inherits `fds`; return its process id, and the launcher that is its parent.

        Raises:
            ResourceError: if the system allows no further process or descriptor.
            LauncherFailed: if the launcher itself cannot be started, or does not answer.
        """
        with self._lock:
            for _ in range(3):
                channel = self._socket or self._start()
                assert self._process is not None
                try:
                    return self._spawn(channel, [fd for fd in fds if fd >= 0]), self._process
                except ConnectionError:
                    self._end()
                except TimeoutError:
                    self._end()  # the next one to ask gets another
                    raise LauncherFailed("the launcher of worker processes does not answer") from None
        raise LauncherFailed("the launcher of worker processes died three times in a row")

    def _spawn(self, channel: socket.socket, fds: list[int]) -> int:
        self._requests += 1
        try:
            socket.send_fds(channel, [PAIR.pack(self._requests, len(fds))], fds)
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                raise ResourceError(f"no more descriptors can be passed to workers ({error.strerror})") from None
            raise ConnectionError from error
        number = pid = 0
        while number != self._requests:  # an earlier one may have been interrupted before it was answered
            reply = channel.recv(PAIR.size)
            if not reply:
                raise ConnectionResetError
            number, pid = PAIR.unpack(reply)
        if pid < 0:
            raise ResourceError(f"no further worker process can be started ({os.strerror(-pid)})")
        return pid

    def _start(self) -> socket.socket:
        with resources("the launcher of worker processes"):
            ours, theirs = socket.socketpair()
            ours.settimeout(_ANSWER_SECONDS)
            arguments = json.dumps(sys.path), str(theirs.fileno()), str(os.getpid()), *self._preloads
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _BOOT, *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **native_thread_variables(1), hash_seed.NAME: hash_seed.workers_hash_seed()},
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

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
        self._socket, self._process = None, None

    def close(self) -> None:
        """End the launcher and every worker that is left; may be called twice."""
        if self.owner == os.getpid():
            with self._lock:
                self._end()


_launchers: dict[int, Launcher] = {}
"""By the process that each belongs to."""

os.register_at_fork(after_in_child=_launchers.clear)


def launcher() -> Launcher:
    """Return this process's launcher; a process that was forked off gets one of its own."""
    pid = os.getpid()
    if pid not in _launchers:
        # At exit finalizers run the newest first: the vector environments close their worlds before this.
        weakref.finalize(Launcher, _launchers.setdefault(pid, Launcher()).close)
    return _launchers[pid]


def kill_group(pid: int) -> None:
    """Kill the process group that a worker leads, if there still is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
