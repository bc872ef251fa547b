"""The inside of a worker process."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import platform
import signal
import socket
import threading
import time
from functools import partial

from stretto.workers.arena import Arena
from stretto.workers.base import Port
from stretto.workers.control import Bell
from stretto.workers.garbage import Garbage
from stretto.workers.launcher import STACK_SIGNAL, Descriptors
from stretto.workers.mail import Disconnected, SocketMail
from stretto.workers.message import message_port
from stretto.workers.output import forward_output
from stretto.workers.serving import Host, Waiting, serve
from stretto.workers.shared_core import SharedCore
from stretto.workers.surroundings import Surroundings
from stretto.workers.waiting import wait_for_requests

_PR_SET_PDEATHSIG = 1


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


def run_worker(fds: Descriptors, parent: int) -> None:
    """Serve the caller at the other end of `fds` until told to stop, or until `parent` has died."""
    with contextlib.suppress(PermissionError):  # the launcher did it already
        os.setpgid(0, 0)
    die_with_parent(parent)
    for fd, standard in ((fds.out, 1), (fds.err, 2)):  # the caller's as they are now, for what is written from C
        os.dup2(fd, standard)
        os.close(fd)
    mail = SocketMail(socket.socket(fileno=fds.mail))
    faulthandler.enable(file=fds.stack)
    faulthandler.register(STACK_SIGNAL, file=fds.stack, all_threads=True)
    try:
        around: Surroundings = mail.receive()
        around.take_over()
        if fds.control < 0:
            port, wait = message_port(around.index, mail, around.pulse_seconds)
        else:
            port, wait = _shared_port(around, fds, mail)
        finish_lines = forward_output(port, around.log_levels)
        serve(Host(port), wait, Garbage())
        finish_lines()
        ctypes.CDLL(None).fflush(None)  # what a world printed from C
    except (Disconnected, ConnectionError):
        pass  # the caller has gone, and nobody is left to be told


def _shared_port(around: Surroundings, fds: Descriptors, mail: SocketMail) -> tuple[Port, Waiting]:
    words = memoryview(mmap.mmap(fds.control, 0)).cast("q")
    os.close(fds.control)
    bells = Bell(fds.bell, -1), Bell(-1, fds.caller_bell)
    port = Port(around.index, words, mail, *bells, Arena(fds.arena))
    port.pickles = True
    # A worker that was waked up on the caller's core may be done before the caller goes on there, and waits for nobody.
    leave_core = partial(SharedCore().leave, [threading.get_native_id()], [around.caller])
    return port, wait_for_requests(around.spin_seconds, leave_core)
