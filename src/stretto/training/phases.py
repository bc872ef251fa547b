"""Phases: what the time of a run is spent on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from stretto.collection.worlds import BlockWorlds

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

AWAITING = "awaiting learners"
"""What stands for `learning` where somebody else does that meanwhile."""


class Phases:
    """Seconds by phase, since it was last asked. `learning` is what the time is called that goes into that.

    `observing` is all that is neither of the others: what agents saw is written down and stored.
    """

    def __init__(self, learning: str = "learning", clock: Callable[[], float] = time.perf_counter) -> None:
        self.learning, self._clock, self._since = learning, clock, clock()
        self._spent = dict.fromkeys(("acting", "stepping", "exchanging", learning), 0.0)

    def timed(self, phase: str, function: F) -> F:
        """Return a function whose calls count as a phase."""
        spent, clock = self._spent, self._clock

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                spent[phase] += clock() - began

        return cast(F, call)

    def of_worlds(self, worlds: BlockWorlds) -> BlockWorlds:
        """Return worlds whose steps count: as stepping while the caller does them itself, else as waiting."""
        seats = worlds.envs.engine.supervisor.seats
        if all(seat.inline for seat in seats):
            return self._counted(worlds, {"exchange": "stepping", "reset": "stepping"})
        for seat in seats:
            if seat.inline and seat.worker is not None:
                seat.worker.work = self.timed("stepping", seat.worker.work)  # type: ignore[method-assign]
        return self._counted(worlds, {"exchange": "exchanging", "reset": "exchanging"})

    def of_runner(self, runner: T) -> T:
        """Return a runner whose choices count as acting."""
        return self._counted(runner, {"act_block": "acting"})

    def _counted(self, inner: T, phases: Mapping[str, str]) -> T:
        return cast(
            T, _Counted(inner, {name: self.timed(phase, getattr(inner, name)) for name, phase in phases.items()})
        )

    def take(self) -> dict[str, float]:
        """Return the seconds of each phase since the last time, which add up to all that went by."""
        now, spent = self._clock(), dict(self._spent)
        total, self._since = now - self._since, now
        self._spent.update(dict.fromkeys(spent, 0.0))
        exchanging = spent.pop("exchanging")  # while the caller steps its own share, and then waits for the others
        waiting = max(0.0, exchanging - spent["stepping"])
        observing = max(0.0, total - waiting - sum(spent.values()))
        return {"observing": observing, "waiting": waiting, **spent}


def before_each(inner: T, name: str, look: Callable[[], object]) -> T:
    """Return something whose function of that name calls `look` first."""
    function = getattr(inner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        look()
        return function(*args, **kwargs)

    return cast(T, _Counted(inner, {name: call}))


class _Counted:
    """Passes everything on, but some functions, which have others in their place."""

    def __init__(self, inner: Any, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._inner = inner
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
