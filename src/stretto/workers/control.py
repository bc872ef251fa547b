"""The words of memory through which a caller and a worker tell each other how far they are; the bell, and the clock.

One writer a word: the caller writes the first line of words and the ring, the worker the lines between (two, because
the caller looks at the first of them again and again while the worker writes its position into the other). Requests are
numbered from 1; the ring holds their codes; `DONE` is the number of the last one that is answered. Nothing here is
a lock, so a side that dies leaves nothing locked.

    word   0 HEAD           requests made so far                         caller
           1 CALLER_ASLEEP  the caller sleeps, or is about to            caller
           2 TRACING        time each request                            caller
           3 LEARNED        what has been learned from mail, a bit each  caller
           4 SLEEPS_AT_ONCE the caller needs the worker's core meanwhile caller
           8 DONE           requests answered so far                     worker
           9 WORKER_ASLEEP  the worker sleeps, or is about to            worker
          10 MAIL           frames sent so far                           worker
          11 NOTE           a number that the service leaves with answers worker
          16 POSITION       what it is at                                worker
          17 COUNT          how often it did what it does                worker
          18 BEAT           signs of life while it is long at one thing  worker
          24 ...            the ring of codes                            caller

Plain stores publish data only where the CPU keeps them in order (x86-64). Elsewhere both sides always sleep and
always ring, and the system calls order the memory.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import threading
import time

HEAD, CALLER_ASLEEP, TRACING, LEARNED, SLEEPS_AT_ONCE = 0, 1, 2, 3, 4
DONE, WORKER_ASLEEP, MAIL, NOTE = 8, 9, 10, 11
POSITION, COUNT, BEAT = 16, 17, 18
RING = 24

PLAIN_STORES_PUBLISH = platform.machine() in ("x86_64", "AMD64")

NOTE_BITS = 8
"""The bits of a note; those above them are the number of the request that it was left with."""

MESSAGE = -1
"""The code of a request whose content comes by mail."""


def control_bytes(capacity: int) -> int:
    """Return the size of the control words with a ring of `capacity` codes."""
    return 8 * (RING + capacity)


def private_words(capacity: int) -> memoryview:
    """Return control words in memory that no other process sees."""
    return memoryview(bytearray(control_bytes(capacity))).cast("q")


_fence = threading.Lock()


def fence() -> None:
    """Let no load that follows pass a store that came before.

    Taking a lock is an atomic read-modify-write, which on x86-64 is a full barrier; Python has no cheaper one.
    """
    _fence.acquire(False)
    try:  # noqa: SIM105  a context manager takes as long as all the rest, and this stands in every step
        _fence.release()
    except RuntimeError:  # another thread released it between the two calls
        pass


class Bell:
    """Wakes whoever sleeps on `fd`; ringing twice is as good as once."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.fd = read_fd
        self.write_fd = write_fd

    @classmethod
    def create(cls) -> Bell:
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        return cls(read_fd, write_fd)

    def ring(self) -> None:
        # BlockingIOError: it is full of rings already. BrokenPipeError: nobody is left to hear it.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.write_fd, b"!")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.fd, 4096)) == 4096:
                pass

    def close_reader(self) -> None:
        """Give up the end to sleep on; somebody else has a copy of it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def close_writer(self) -> None:
        """Give up the end to ring with; whoever sleeps at the other is told that nobody will ring any more."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
        self.write_fd = -1

    def close(self) -> None:
        self.close_reader()
        self.close_writer()

    def __del__(self) -> None:
        self.close()


NO_BELL = Bell(-1, -1)
"""For whoever has nobody to wake."""


class Clock:
    """The time, and sleeping; tests have one that sleeps in no time."""

    now = staticmethod(time.monotonic)

    def poll(self, poller: select.poll, seconds: float) -> list[tuple[int, int]]:
        """Sleep until a descriptor is ready or `seconds` have passed; return what is ready."""
        return poller.poll(seconds * 1000)
