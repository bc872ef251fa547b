"""CpuBudget: the only place that hands out cores, and the cap on native thread pools."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NATIVE_LIBRARIES = ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "BLIS_NUM", "VECLIB_MAXIMUM", "NUMEXPR_NUM")


def native_thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that give each computation of a new process so many native threads."""
    return {f"{library}_THREADS": str(threads) for library in _NATIVE_LIBRARIES}


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
    """Holds the native thread pools of this process at so many threads while worlds are stepped in it.

    `threadpool_limits` searches all loaded libraries (0.5 ms) or walks its own records (19 µs), and its controllers look
    symbols up by name (4 µs); calling the libraries' own functions takes 1.3 µs, which a vector step can bear.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._pools: list[_Pool] | None = None
        self._pools_by_thread: list[_Pool] = []
        self._has_torch = False

    @contextmanager
    def capped(self) -> Iterator[None]:
        """Run the body with so many native threads a computation."""
        changed = self.cap()
        try:
            yield
        finally:
            self.restore(changed)

    def cap(self) -> list[tuple[_Pool, int]]:
        """Set every pool to so many threads; return what `restore` needs."""
        return self._set(self._found())

    def cap_thread(self) -> None:
        """Set those limits that the calling thread has for itself: a new thread has torch's, MKL's and OpenMP's usual ones.

        The limits of the whole process are left to the caller's thread, which restores them.
        """
        self._found()
        self._set(self._pools_by_thread)

    def _found(self) -> list[_Pool]:
        has_torch = hasattr(sys.modules.get("torch"), "set_num_threads")  # not while it is being imported
        if self._pools is None or has_torch is not self._has_torch:
            try:
                self._pools_by_thread, others = _pools(has_torch)
            except OSError:  # no descriptor is left to read which libraries are loaded: the next call tries again
                return self._pools or []
            self._pools, self._has_torch = self._pools_by_thread + others, has_torch
        return self._pools

    def _set(self, pools: list[_Pool]) -> list[tuple[_Pool, int]]:
        changed = []
        for pool in pools:
            threads = pool[0]()
            if threads is not None and threads != self._threads:
                pool[1](self._threads)
                changed.append((pool, threads))
        return changed

    def restore(self, changed: list[tuple[_Pool, int]]) -> None:
        """Undo `cap`."""
        for pool, threads in changed:
            pool[1](threads)


_Pool = tuple[Callable[[], int | None], Callable[[int], object]]
"""How to ask a library for its number of threads, and how to set it."""


def _pools(has_torch: bool) -> tuple[list[_Pool], list[_Pool]]:
    """Return the pools of which each thread has limits of its own, and those that all threads share."""
    from threadpoolctl import ThreadpoolController

    by_thread, shared = list[_Pool](), list[_Pool]()
    if has_torch:  # to ask it for its number is enough to give a new thread the limits of MKL that it set elsewhere
        torch = sys.modules["torch"]
        by_thread.append((torch.get_num_threads, torch.set_num_threads))
    for library in ThreadpoolController().lib_controllers:
        (by_thread if library.internal_api == "openmp" else shared).append(_pool(library))
    return by_thread, shared


def _pool(library: Any) -> _Pool:
    if library.internal_api == "openblas":
        for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
            names = [f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
            if all(hasattr(library.dynlib, name) for name in names):
                return getattr(library.dynlib, names[0]), getattr(library.dynlib, names[1])
    return library.get_num_threads, library.set_num_threads
