"""The inside of a worker process."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import platform
import random
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stretto.budget import NATIVE_THREADS_CAP, CpuBudget, set_default_budget
from stretto.workers.arena import Arena
from stretto.workers.base import Port, serve
from stretto.workers.control import HEAD, PLAIN_STORES_PUBLISH, RING, WORKER_ASLEEP, Bell, fence, spin_limit
from stretto.workers.mail import Disconnected, SocketMail
from stretto.workers.output import forward_output

STACK_SIGNAL = signal.SIGUSR2
"""Makes a worker write its Python stack into the file that it shares with the caller."""

_LONGEST_SLEEP_MILLISECONDS = 250
"""A sleep ends at least this often, so that even a ring that got lost delays and never hangs."""

_PR_SET_PDEATHSIG = 1


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


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent dies; where it cannot, look from time to time."""
    if platform.system() == "Linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        return

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()


def run_worker(fds: list[int], parent: int) -> None:
    """Serve the caller at the other end of `fds` until told to stop, or until `parent` has died."""
    with contextlib.suppress(PermissionError):  # the launcher did it already
        os.setpgid(0, 0)
    die_with_parent(parent)
    mail_fd, control_fd, arena_fd, bell_fd, caller_bell_fd, stack_fd, out_fd, err_fd = fds
    for fd, standard in ((out_fd, 1), (err_fd, 2)):  # the caller's streams as they are now, for what is written from C
        os.dup2(fd, standard)
        os.close(fd)
    mail = SocketMail(socket.socket(fileno=mail_fd))
    faulthandler.enable(file=stack_fd)
    faulthandler.register(STACK_SIGNAL, file=stack_fd, all_threads=True)
    words = memoryview(mmap.mmap(control_fd, 0)).cast("q")
    os.close(control_fd)
    try:
        around: Surroundings = mail.receive()
        _take_over(around)
        arena = Arena(arena_fd)
        port = Port(around.index, words, len(words) - RING, mail, Bell(bell_fd, -1), Bell(-1, caller_bell_fd), arena)
        port.crosses_processes = True
        finish_lines = forward_output(port, around.log_levels)
        serve(port, _waiting(around.spin_seconds, mail_fd))
        finish_lines()
        ctypes.CDLL(None).fflush(None)  # what a world printed from C
    except (Disconnected, ConnectionError):
        pass  # the caller has gone, and nobody is left to be told


def _take_over(around: Surroundings) -> None:
    os.environ.clear()
    os.environ.update(around.environment)
    os.environ.update(NATIVE_THREADS_CAP)
    with contextlib.suppress(OSError):  # the folder may have been removed since
        os.chdir(around.folder)
    sys.path[:] = around.import_path
    sys.argv[:] = around.arguments
    set_default_budget(CpuBudget(1))
    # All are forked from one launcher: without this, what they draw from global generators would be the same in each.
    random.seed()
    np.random.seed()  # noqa: NPY002  the very generator that old code draws from


def _waiting(spin_seconds: float, mail_fd: int) -> Callable[[Port, int], int]:
    """Return how this worker waits for requests: a short spin where a core is spare, then a sleep."""
    clock, began = time.perf_counter, time.perf_counter()

    def wait(port: Port, answered: int) -> int:
        nonlocal began
        try:
            return look_and_sleep(port, answered)
        finally:
            began = clock()

    def look_and_sleep(port: Port, answered: int) -> int:
        words = port.words
        if spin_seconds and PLAIN_STORES_PUBLISH:
            now = clock()
            until = now + spin_limit(spin_seconds, now - began)
            while clock() < until:
                for _ in range(20):
                    if words[HEAD] > answered:
                        return int(words[HEAD])
        poller = select.poll()
        poller.register(port.bell.fd, select.POLLIN)
        poller.register(mail_fd, 0)  # only to hear that the caller has gone
        while True:
            words[WORKER_ASLEEP] = 1
            fence()
            if not PLAIN_STORES_PUBLISH or words[HEAD] == answered:
                for fd, event in poller.poll(_LONGEST_SLEEP_MILLISECONDS):
                    if fd == mail_fd and event & (select.POLLHUP | select.POLLERR):
                        raise Disconnected("the caller has gone")
                port.bell.clear()
            words[WORKER_ASLEEP] = 0
            if words[HEAD] > answered:
                return int(words[HEAD])

    return wait
