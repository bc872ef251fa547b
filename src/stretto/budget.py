"""CpuBudget: the only place that hands out cores, and the cap on native thread pools."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


def machine_cores() -> int:
    """Return the cores of this machine, whoever may use them."""
    return os.cpu_count() or 1


def _told_by_kernel(path: str) -> list[bytes]:
    """Return the words of a file's first line, in a third of the time that a file object takes: this is asked in steps."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 512).partition(b"\n")[0].split()
    finally:
        os.close(descriptor)


def core_seconds() -> tuple[float, float] | None:
    """Return how long this thread has computed, and how long it waited for a core to do so; `None`: nobody says."""
    try:
        computed, waited, *_ = _told_by_kernel("/proc/thread-self/schedstat")
        return int(computed) * 1e-9, int(waited) * 1e-9
    except (OSError, ValueError):
        return None


def free_seconds() -> float:
    """Return how long all cores of this machine together were free since it started, for a program that is not nice.

    0 where nobody says.
    """
    try:
        _, _, nice, _, idle, *_ = _told_by_kernel("/proc/stat")
        return (int(idle) + int(nice) * (os.nice(0) == 0)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def running_programs() -> float:
    """Return how many threads of this machine have a core or want one at this moment; infinite where nobody says."""
    try:
        return int(_told_by_kernel("/proc/loadavg")[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return math.inf


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
    def taken(self) -> int:
        """The cores that are leased now."""
        return self._taken

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


_NOTHING = object()


class NativeThreads:
    """Holds the native thread pools of this process at so many threads while worlds are stepped in it.

    Some limits belong to a thread (torch, MKL, OpenMP), others to the whole process (OpenBLAS). Once threads step worlds
    beside the caller, the limits of the process have holders: they go back to what they were when the last one restores
    them. While holders want different numbers, the one that came last decides.

    `threadpool_limits` searches all loaded libraries (0.5 ms) or walks its own records (19 µs), and its controllers look
    symbols up by name (4 µs); calling the libraries' own functions takes 0.5 µs, and writing where they keep the number 0.2.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._pools: list[_Pool] = []
        self._of_thread: list[_Pool] = []
        self._of_process: list[_Pool] = []
        self._looked_beside: Any = _NOTHING  # what there was of torch when libraries were looked for

    @contextmanager
    def capped(self) -> Iterator[None]:
        """Run the body with so many native threads a computation."""
        undo = self.cap()
        try:
            yield
        finally:
            self.restore(undo)

    def cap(self) -> list[_Undo]:
        """Set every pool to so many threads; return what `restore` needs."""
        if _process.is_shared:
            undo = self.cap_thread()
            _process.hold(self, self._threads, self._of_process)
            undo.append((_Pool(_nobody_knows, self.let_go), 0))
            return undo
        as_before = sys.modules.get("torch") is self._looked_beside
        return self._set(self._pools if as_before else self._find())

    def cap_for_good(self) -> None:
        """Set every pool to so many threads in a process that has nobody else to compute for."""
        self._set(self._find())

    def restore(self, undo: list[_Undo]) -> None:
        """Undo `cap`."""
        for pool, threads in undo:
            if pool.shown is None:
                pool.set(threads)
            else:
                pool.shown[0] = threads  # it has had so many before, hence they are there

    def cap_thread(self) -> list[_Undo]:
        """Set those limits that the calling thread has for itself: a new thread has the usual ones of torch and OpenMP."""
        self._find()
        return self._set(self._of_thread)

    def let_go(self, _: int = 0) -> None:
        """Undo one `cap` of the limits of the process; if somebody did that already, do nothing."""
        _process.let_go(self, self._threads, self._of_process)

    def _find(self) -> list[_Pool]:
        """Return the pools of all libraries that were loaded at the first call, or together with torch."""
        torch = sys.modules.get("torch")
        torch = torch if hasattr(torch, "set_num_threads") else None  # not while it is being imported
        if torch is not self._looked_beside:
            try:
                self._of_thread, self._of_process = _pools(torch is not None)
            except OSError:  # no descriptor is left to read which libraries are loaded: the next call tries again
                return []
            self._pools, self._looked_beside = self._of_thread + self._of_process, torch
        return self._pools

    def _set(self, pools: list[_Pool]) -> list[_Undo]:
        undo: list[_Undo] = []
        wanted = self._threads
        for pool in pools:
            shown = pool.shown
            threads = pool.ask() if shown is None else shown[0]
            if threads is None or (threads == wanted and not pool.sets_more):
                continue
            if shown is None or threads < wanted:  # more threads have to be started
                pool.set(wanted)
            else:
                shown[0] = wanted
            if threads != wanted:
                undo.append((pool, threads))
        return undo


@dataclass(eq=False, slots=True)
class _Pool:
    """How to ask a library for its number of threads, and how to set it; `shown` is where it keeps it, if that is known.

    It `sets_more` than it tells: torch tells OpenMP's number, and gives MKL the same. MKL may have had another, because who
    limits OpenMP alone does not change that.
    """

    ask: Callable[[], int | None]
    set: Callable[[int], object]
    shown: memoryview[int] | None = None
    sets_more: bool = False


_Undo = tuple[_Pool, int]
"""Which pool to set, and to which number, to undo something."""


def _nobody_knows() -> None:
    """Stand for the number of threads that cannot be asked for."""


class _ProcessLimits:
    """Those limits that all threads of this process share, and who holds them now, in the order in which they came.

    `is_shared`: threads step worlds, so that holders must be counted. That takes 0.4 µs more, and so the caller does without
    it until then.
    """

    def __init__(self) -> None:
        self.is_shared = False
        self.known: dict[str, _Pool] = {}  # by file, so that all holders have the same
        self._lock = threading.Lock()
        self._holders: list[tuple[object, int]] = []
        self._usual: dict[_Pool, int] = {}  # what the limits were before the first holder

    def pool_of(self, library: Any) -> _Pool:
        """Return the pool of a library: looked for once, and not while anybody sets it."""
        with self._lock:
            pool = self.known.get(library.filepath)
            if pool is None:
                pool = self.known[library.filepath] = _pool(library)
            return pool

    def hold(self, holder: object, threads: int, pools: list[_Pool]) -> None:
        """Set the pools to so many threads, until `let_go`."""
        with self._lock:
            for pool in pools:
                before = pool.ask()
                if before is not None and before != threads:
                    self._usual.setdefault(pool, before)
                    pool.set(threads)
            self._holders.append((holder, threads))

    def let_go(self, holder: object, threads: int, pools: list[_Pool]) -> None:
        """Set the pools to what the last of the other holders wants; if there is none, to what they were."""
        with self._lock:
            if (holder, threads) not in self._holders:
                return
            self._holders.remove((holder, threads))
            if not self._holders:
                for pool, before in self._usual.items():
                    pool.set(before)
                self._usual.clear()
            elif (wanted := self._holders[-1][1]) != threads:
                for pool in pools:
                    pool.set(wanted)


_process = _ProcessLimits()


def share_native_threads() -> None:
    """Count from now on who holds the limits of this process: threads are about to step worlds."""
    _process.is_shared = True


def _pools(has_torch: bool) -> tuple[list[_Pool], list[_Pool]]:
    """Return the pools of which each thread has limits of its own, and those that all threads share."""
    from threadpoolctl import ThreadpoolController

    by_thread, shared = list[_Pool](), list[_Pool]()
    if has_torch:  # to ask it for its number is enough to give a new thread the limits of MKL that it set elsewhere
        torch = sys.modules["torch"]
        by_thread.append(_Pool(torch.get_num_threads, torch.set_num_threads, sets_more=True))
    for library in ThreadpoolController().lib_controllers:
        pool = _process.pool_of(library)
        (by_thread if library.internal_api == "openmp" else shared).append(pool)
    return by_thread, shared


def _pool(library: Any) -> _Pool:
    if library.internal_api == "openblas":
        for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64")):
            names = [f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
            if all(hasattr(library.dynlib, name) for name in names):
                # Both take no time, so they need not let other threads run meanwhile, which takes longer than all the rest.
                direct = ctypes.PyDLL(library.filepath, handle=library.dynlib._handle)  # noqa: SLF001  there is no public way
                pool = _Pool(getattr(direct, names[0]), getattr(direct, names[1]))
                if library.threading_layer == "pthreads":  # OpenMP has a number of its own, too
                    pool.shown = _where_shown(direct, pool)
                return pool
    return _Pool(library.get_num_threads, library.set_num_threads)


def _where_shown(library: ctypes.CDLL, pool: _Pool) -> memoryview[int] | None:
    """Return where OpenBLAS keeps its number of threads, if what is found there is what it says, also once it was told."""
    try:
        variable = ctypes.c_int.in_dll(library, "blas_cpu_number")
    except ValueError:
        return None
    shown, threads = memoryview(variable).cast("B").cast("i"), pool.ask()
    if threads is None or threads < 2 or shown[0] != threads:
        return None
    pool.set(1)
    follows = shown[0] == pool.ask() == 1
    pool.set(threads)
    return shown if follows and shown[0] == threads else None
