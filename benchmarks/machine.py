"""Which machine, and with which versions: a figure means little without them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import multiprocessing
import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

from stretto.budget import available_cores


def describe(*packages: str) -> str:
    """Return one line about this machine and the packages that are installed."""
    versions = [f"{name} {version}" for name in packages if (version := _version(name)) is not None]
    parts = [_processor(), f"{available_cores()} cores", f"Python {platform.python_version()}", *versions]
    return ", ".join(parts)


class OtherPrograms:
    """Watches how much of the machine is used by others than `processes`: they make figures noisy, and low."""

    def __init__(self, processes: list[psutil.Process]) -> None:
        self._processes = processes
        self._began, self._busy, self._ours = time.monotonic(), self._used_by_all(), self._used_by_ours()

    def cores(self) -> float:
        """Return how many cores others have used since construction."""
        others = (self._used_by_all() - self._busy) - (self._used_by_ours() - self._ours)
        return max(0.0, others / (time.monotonic() - self._began))

    def _used_by_all(self) -> float:
        times = psutil.cpu_times()
        return float(times.user + times.system + getattr(times, "nice", 0.0))

    def _used_by_ours(self) -> float:
        total = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:2])
        return total


class CoreProbes:
    """Tells how fast each core is just now: on a machine shared with others that is what they leave of it.

    A process sits on each core and sleeps until it is asked; then all count for a moment, at the same time.
    """

    SECONDS = 0.003

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._ends = []
        for core in sorted(os.sched_getaffinity(0)):
            ours, theirs = context.Pipe()
            context.Process(target=self._serve, args=(core, theirs), daemon=True).start()
            self._ends.append(ours)

    def _serve(self, core: int, end: Any) -> None:
        os.sched_setaffinity(0, {core})
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            while True:
                end.recv()
                self._count(self.SECONDS / 3)  # a core that has slept takes a moment
                end.send(self._count(self.SECONDS) / self.SECONDS)

    @staticmethod
    def _count(seconds: float) -> int:
        clock, count = time.perf_counter, 0
        until = clock() + seconds
        while clock() < until:
            for _ in range(50):
                count += 1
        return count

    def processes(self) -> list[psutil.Process]:
        """Return the probes themselves."""
        return psutil.Process().children()

    def slowest(self) -> float:
        """Return what the slowest core counts in a second."""
        for end in self._ends:
            end.send(None)
        return min(end.recv() for end in self._ends)


def load_warning() -> str | None:
    """Say so if other programs are busy at the moment."""
    load = os.getloadavg()[0]
    if load < 0.5:
        return None
    return f"the load of this machine was {load:.1f} before the start: other programs make figures noisy, and low"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
