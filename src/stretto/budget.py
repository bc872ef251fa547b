"""CpuBudget: the only place that hands out cores, and the cap on native thread pools."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NATIVE_THREADS_CAP = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    ),
    "1",
)
"""Environment variables of a worker: one native thread a computation, so that results do not depend on the width."""


def available_cores() -> int:
    """Return the cores that this process may use: its affinity, and its cgroup's quota where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota))) if quota else max(1, cores)


def _cgroup_quota() -> float | None:
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else float(limit) / float(period)


class Lease:
    """Cores taken from a budget; give them back with `release()`, which may be called twice."""

    def __init__(self, budget: CpuBudget, cores: int) -> None:
        self._budget = budget
        self.cores = cores

    def release(self) -> None:
        cores, self.cores = self.cores, 0
        self._budget.give_back(cores)


class CpuBudget:
    """A number of cores that everything in this process draws on.

    A lease never blocks: it gives what is free, at least one core, because the caller computes in any case.
    """

    def __init__(self, total: int | None = None) -> None:
        self.total = available_cores() if total is None else max(1, total)
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """The cores that a lease would get now; at least 1."""
        return max(1, self.total - self._taken)

    def lease(self, cores: int) -> Lease:
        """Take `cores`, even if fewer are free (the user's word counts); see `free` to ask first."""
        with self._lock:
            self._taken += cores
        return Lease(self, cores)

    def give_back(self, cores: int) -> None:
        """Take cores back; `Lease.release` is how."""
        with self._lock:
            self._taken -= cores


_default: CpuBudget | None = None


def default_budget() -> CpuBudget:
    """Return the budget of this process (in a worker: the share that its parent gave it)."""
    global _default
    if _default is None:
        _default = CpuBudget()
    return _default


def set_default_budget(budget: CpuBudget) -> None:
    """Replace the budget of this process."""
    global _default
    _default = budget


class NativeThreads:
    """Holds the native thread pools of this process at one thread while worlds are stepped in it.

    `threadpool_limits` searches all loaded libraries (0.5 ms) or walks its own records (19 µs), and its controllers look
    symbols up by name (4 µs); calling the libraries' own functions takes 1.3 µs, which a vector step can bear.
    """

    def __init__(self) -> None:
        self._pools: list[_Pool] | None = None

    @contextmanager
    def capped(self) -> Iterator[None]:
        """Run the body with one native thread a computation."""
        raised = self.cap()
        try:
            yield
        finally:
            self.restore(raised)

    def cap(self) -> list[tuple[_Pool, int]]:
        """Set every pool to one thread; return what `restore` needs."""
        if self._pools is None:
            from threadpoolctl import ThreadpoolController

            self._pools = [_pool(library) for library in ThreadpoolController().lib_controllers]
        raised = []
        for pool in self._pools:
            threads = pool[0]()
            if threads is not None and threads > 1:
                pool[1](1)
                raised.append((pool, threads))
        return raised

    def restore(self, raised: list[tuple[_Pool, int]]) -> None:
        """Undo `cap`."""
        for pool, threads in raised:
            pool[1](threads)


_Pool = tuple[Callable[[], int | None], Callable[[int], object]]
"""How to ask a library for its number of threads, and how to set it."""


def _pool(library: Any) -> _Pool:
    if library.internal_api == "openblas":
        for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
            names = [f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
            if all(hasattr(library.dynlib, name) for name in names):
                return getattr(library.dynlib, names[0]), getattr(library.dynlib, names[1])
    return library.get_num_threads, library.set_num_threads
