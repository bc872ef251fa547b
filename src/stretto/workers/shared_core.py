"""Processes of ours that the kernel runs on one core, one after the other, while another core is free: one is sent there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from stretto.budget import machine_cores, running_programs

EVERY_SECONDS = 5e-3
"""How long is between two looks at least: one takes 0.05 ms."""


class Running(NamedTuple):
    """On which core a thread is, and whether it computes there or wants to."""

    core: int
    runs: bool


def where(thread: int) -> Running:
    """Return where a thread is, by its number in the system; that of a process is the one of its first thread.

    Raises:
        OSError: if there is none, or nobody says.
    """
    descriptor = os.open(f"/proc/{thread}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        told = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    fields = told.rpartition(b")")[2].split()  # its name, in brackets, may hold spaces
    return Running(int(fields[36]), fields[0] == b"R")


class SharedCore:
    """Sends threads that want the core of others of ours to another one, if a core is free.

    Linux likes to wake a process where the one that wakes it runs. Two that wake each other every 0.1 ms then seem too
    warm to be moved, and take turns on one core beside an idle one. On two idle cores that lasted for up to seconds, and
    64 CartPoles had 2,700 steps a second in place of 6,000. What a user has asked for with `taskset` stays.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._next = clock, 0.0 if hasattr(os, "sched_setaffinity") else float("inf")

    def leave(self, movable: Iterable[int], beside: Iterable[int]) -> None:
        """Send those of the `movable` threads to free cores that run where one `beside` them does, or another of them."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_SECONDS
        if running_programs() > machine_cores():
            return
        with suppress(OSError):
            taken = {found.core for found in map(where, beside) if found.runs}
            for thread in movable:
                _place(thread, taken)


def _place(thread: int, taken: set[int]) -> None:
    """Let a thread that runs have a core that is not `taken`, which takes it."""
    core, runs = where(thread)
    if not runs:
        return
    if core in taken:
        allowed = os.sched_getaffinity(thread)
        free = allowed - taken
        if not free:
            return
        # The next one: where many callers look for a core, they should not all find the first.
        core = min(free, key=lambda one: (one < core, one))
        os.sched_setaffinity(thread, {core})  # moves it at once
        os.sched_setaffinity(thread, allowed)
    taken.add(core)
