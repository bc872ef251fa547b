"""The launcher's own process. Whatever every worker needs is imported here, before any is forked."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback

import gymnasium.vector  # noqa: F401  for those who are forked

import stretto.workers.child
from stretto.workers.launcher import EXIT_MARK, PAIR, Descriptors, kill_group

_PARENT_CHECK_SECONDS = 0.2


def main() -> None:
    """Serve requests for workers until the caller has gone."""
    # Signals that the caller blocks are not blocked here.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    channel = socket.socket(fileno=int(sys.argv[2]))
    caller = int(sys.argv[3])
    _ = stretto.make_vec  # imports what steps worlds
    gc.disable()  # while modules are imported, nothing becomes garbage: looking for it takes a seventh of the time
    for module in sys.argv[4:]:
        _preload(module)
    gc.enable()
    server = _ForkServer(channel, caller)
    server.run()
    for pid in server.stack_fds:
        kill_group(pid)


def _preload(module: str) -> None:
    with contextlib.suppress(Exception):  # whoever needs it imports it again, and hears why that fails
        importlib.import_module(module)


class _ForkServer:
    """Forks workers, reaps them, and ends them with the caller."""

    def __init__(self, channel: socket.socket, caller: int) -> None:
        self.channel = channel
        self.caller = caller
        self.pid = os.getpid()
        self.stack_fds: dict[int, int] = {}  # of each child
        self.wake_read, self.wake_write = os.pipe()
        for fd in (self.wake_read, self.wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the caller has gone."""
        gc.freeze()  # fewer pages are copied in the children
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        poller.register(self.wake_read, select.POLLIN)
        while os.getppid() == self.caller:
            for fd, _ in poller.poll(_PARENT_CHECK_SECONDS * 1000):
                if fd == self.wake_read:
                    os.read(self.wake_read, 4096)
                elif not self.serve():
                    return
            self.reap()

    def serve(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self.channel, PAIR.size, len(Descriptors._fields))
        except ConnectionError:
            return False
        if not data:
            return False
        number, count = PAIR.unpack(data)
        if number == 0:
            _preload(self.channel.recv(count).decode())
            gc.freeze()
            return True
        try:
            if len(fds) < count:  # the kernel drops those that exceed the limit of this process
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or errno.EAGAIN)
        else:
            if pid == 0:
                self.become_worker(Descriptors(*fds))
            self.stack_fds[pid] = Descriptors(*fds).stack
            fds.remove(self.stack_fds[pid])
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # the caller may have gone
            self.channel.send(PAIR.pack(number, pid))
        return True

    def become_worker(self, fds: Descriptors) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.channel.close()
            for fd in (self.wake_read, self.wake_write, *self.stack_fds.values()):
                os.close(fd)
            for fd in fds:
                if fd >= 0:
                    os.set_inheritable(fd, False)  # a program that a world starts must not keep them open
            # If the launcher has died since, the caller has had another worker started with these descriptors.
            stretto.workers.child.run_worker(fds, self.pid)
            code = 0
        except BaseException:  # noqa: BLE001  ours, not the world's: it goes where the caller finds it with the worker's end
            os.write(fds.stack, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def reap(self) -> None:
        while self.stack_fds:
            try:
                exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if exited is None:
                return
            kill_group(exited.si_pid)  # before it is reaped: its id cannot belong to anybody else yet
            _, status = os.waitpid(exited.si_pid, 0)
            stack_fd = self.stack_fds.pop(exited.si_pid)
            with contextlib.suppress(OSError):
                os.write(stack_fd, EXIT_MARK + str(os.waitstatus_to_exitcode(status)).encode() + EXIT_MARK)
            os.close(stack_fd)
