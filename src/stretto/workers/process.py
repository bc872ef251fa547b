"""A worker that is a process of its own: it can be killed, timed out and replaced."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
from typing import Any, Protocol

from stretto.errors import UsageError, resources
from stretto.workers.arena import Arena, anonymous_file, reserve
from stretto.workers.base import Factory, Start, Worker
from stretto.workers.control import MAIL, MESSAGE, Bell, control_bytes
from stretto.workers.mail import CallerMail, Frames, dump
from stretto.workers.spawned import SpawnedProcess
from stretto.workers.surroundings import Surroundings


class FarProcess(Protocol):
    """A process that serves at the other end of a connection, on whichever machine."""

    @property
    def pid(self) -> int | None:
        """Its number, if it is one of this machine's processes."""

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when it ends; -1 if there is none."""

    @property
    def told(self) -> bool:
        """Whether it was ended, and how that came about is known."""

    def alive(self) -> bool:
        """Whether it still runs."""

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it came."""

    def end_soon(self) -> None:
        """Kill it, and do not wait until it is gone."""

    def stack(self) -> str:
        """Return where its Python code stands now."""

    def last_words(self) -> str:
        """Say how it ended; if it has not, kill it."""

    def let_go(self) -> None:
        """Give back what belongs to a process that has ended, but for the connection; may be called twice."""


class Connection(Protocol):
    """The caller's end of a connection to a process; it never waits."""

    fd: int
    ended: bool  # the other side has closed its end: nothing will arrive any more
    frames: Frames

    @property
    def unsent(self) -> bool:
        """Whether something waits for room."""

    def post(self, data: bytes, code: int = 0) -> None:
        """Send what `dump` made, now or as soon as there is room for it."""

    def flush(self) -> None:
        """Send what there is room for."""

    def drain(self) -> bool:
        """Take in what has arrived, without waiting; return whether anything had."""

    def close(self) -> None:
        """Let go of it."""


class ProcessWorker(Worker):
    """Runs its service in a process that the launcher forks. It leads a process group, and is killed with it.

    Owned here: the connection, the write end of the worker's bell, and the process. `kill` and `close` give all of them
    back.
    """

    _mail: Connection
    _process: FarProcess
    _cpu_seconds = 0.0

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
        start = pickled_start(factory)
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as theirs, resources("a worker process"):
            words, bell, shared = self._share(capacity, arena, caller_bell, theirs)
            on_failure.callback(bell.close)
            process = SpawnedProcess(shared)
            on_failure.pop_all()
        bell.close_reader()  # it is the worker's
        self._take_up(index, words, bell, process, CallerMail(process.connection))
        self._begin(Surroundings.of_this_process(index, spin_seconds, native_threads), start)

    def _take_up(self, index: int, words: memoryview, bell: Bell, process: FarProcess, mail: Connection) -> None:
        """Become the caller's end of a process that was started."""
        Worker.__init__(self, index, words, mail, bell)
        self._process = process
        self._unbroken = _EndIfCutShort(process)

    def _begin(self, surroundings: Surroundings, start: bytes) -> None:
        """Tell the process what it has to know, and what it serves."""
        try:
            self._mail.post(dump(surroundings))
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
    def pid(self) -> int | None:
        return self._process.pid

    def cpu_seconds(self) -> float:
        if not sys.platform.startswith("linux") or self.pid is None:
            return 0.0
        with contextlib.suppress(OSError):  # it has ended
            self._cpu_seconds = time.clock_gettime(~self.pid << 3 | 2)  # how Linux numbers the CPU clocks of processes
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
                frames += self._mail.frames.take()
                # What is announced has been written, but a socket may give a long frame out in pieces.
                if self.read + len(frames) >= announced or not self.alive():
                    break
            self.read += len(frames)
        return frames

    def alive(self) -> bool:
        # One that closed its end of the connection can be told nothing more: `last_words` will end it.
        return not self._process.told and not self._mail.ended and self._process.alive()

    def watched(self) -> list[int]:
        return [fd for fd in (self._mail.fd, self._process.fd) if fd >= 0]

    def stack(self) -> str:
        return self._process.stack()

    def last_words(self) -> str:
        return self._process.last_words()

    def kill(self) -> None:
        self.last_words()
        if self._mail.fd >= 0:
            self._mail.close()
            self.bell.close()
            self._process.let_go()

    def close(self, timeout: float) -> None:
        if self._process.told:
            return
        self.stop()
        deadline = time.monotonic() + timeout
        while self._process.alive() and time.monotonic() < deadline:
            self.exchange()  # it must not wait for somebody who reads
            self._process.wait(0.02)
        self.exchange()
        self.kill()


def pickled_start(factory: Factory) -> bytes:
    """Return the first message to a worker that is in another process.

    Raises:
        UsageError: if it cannot be pickled.
    """
    try:
        return dump(Start(factory), by_value=True)
    except Exception as error:  # whatever the __reduce__ of something in it raises
        raise UsageError(
            f"what runs in another process must be picklable, and this is not: {type(error).__name__}: {error}; make "
            f"such objects inside the function that makes the world, or use backend='serial' or 'thread'"
        ) from error


class _EndIfCutShort:
    """Ends a worker after Ctrl-C in the middle of its mail: nobody knows how much of a message went over."""

    def __init__(self, process: FarProcess) -> None:
        self._process = process

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.end_soon()
