"""Surroundings: what a worker process takes over from its caller before it does anything."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from stretto.budget import CpuBudget, NativeThreads, native_thread_variables, set_default_budget

PULSE_SECONDS = 0.1
"""How often a worker that has messages alone, and is long at one thing, tells what it is at."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The caller's, as they were when it started a worker; with what that worker is told of itself."""

    index: int
    spin_seconds: float
    native_threads: int
    environment: dict[str, str]
    folder: str
    import_path: list[str]
    arguments: list[str]
    log_levels: dict[str, int]
    caller: int  # the thread that started it
    pulse_seconds: float = PULSE_SECONDS
    cores: int = 1
    elsewhere: bool = False  # on another machine, perhaps, which has paths and variables of its own

    @classmethod
    def of_this_process(cls, index: int, spin_seconds: float, native_threads: int) -> Self:
        folder = str(Path.cwd())
        import_path = [path or folder for path in sys.path]
        settings = index, spin_seconds, native_threads
        levels, caller = _log_levels(), threading.get_native_id()
        return cls(*settings, dict(os.environ), folder, import_path, list(sys.argv), levels, caller)

    def take_over(self) -> None:
        """Make this process's surroundings the same; it has one core, and draws from generators of its own."""
        own = dict(os.environ) if self.elsewhere else {}
        os.environ.clear()
        os.environ.update({**self.environment, **own})
        os.environ.update(native_thread_variables(self.native_threads))
        if self.native_threads > 1:
            NativeThreads(self.native_threads).cap_for_good()  # the launcher has loaded numpy's library with one
        with contextlib.suppress(OSError):  # the folder may have been removed since
            os.chdir(self.folder)
        own_path = [path for path in sys.path if path not in self.import_path] if self.elsewhere else []
        sys.path[:] = self.import_path + own_path
        sys.argv[:] = self.arguments
        set_default_budget(CpuBudget(self.cores))
        # All are forked from one launcher: without this, what they draw from global generators would be the same in each.
        random.seed()
        np.random.seed()  # noqa: NPY002  the very generator that old code draws from


def _log_levels() -> dict[str, int]:
    """Return the levels that loggers of this process were given; the root's name is empty."""
    named = logging.root.manager.loggerDict
    levels = {name: logger.level for name, logger in list(named.items()) if isinstance(logger, logging.Logger)}
    return {"": logging.root.level, **{name: level for name, level in levels.items() if level}}
