"""An actor of a cluster that carries the process of a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stretto.workers.relay import Host, boot_of_this_machine

if TYPE_CHECKING:
    from stretto.workers.cluster import Cluster

_CLOCK_SECONDS, _CLOCK_TRIES = 10.0, 5


@dataclass(eq=False, slots=True)
class Lent:
    """An actor that carries the process of a worker, the `life`-th of all; `node` is where it is, once that is known."""

    cluster: Cluster
    actor: Any
    cores: float
    life: int = 0
    host: Any = None
    gone: Any = None  # is over when the actor is
    asked: Callable[[], int] = lambda: 0  # how many requests are under way there

    @property
    def node_id(self) -> str | None:
        """Ray's name of its node, if it has got one."""
        return self.host.result().node_id if self._is_placed else None

    @property
    def node(self) -> str | None:
        """The name of its node, if it has got one."""
        return self.cluster.name_of(self.host.result().node_id) if self._is_placed else None

    @property
    def installation(self) -> Mapping[str, str]:
        """The versions of what numbers come from on its node; nothing as long as it has none."""
        return dict(self.host.result().installation) if self._is_placed else {}

    @property
    def is_here(self) -> bool:
        """Whether its node is this machine, so that a process there has a number that means something here."""
        return self._is_placed and bool(self.host.result().boot) and self.host.result().boot == boot_of_this_machine()

    @property
    def _is_placed(self) -> bool:
        return self.host.done() and self.host.exception() is None

    def clock_offset(self) -> int:
        """Return by how many nanoseconds the clock of its node is ahead of ours."""
        host: Host = self.host.result()
        if self.is_here:
            return 0
        if host.boot not in self.cluster.clocks:
            self.cluster.clocks[host.boot] = self._measure_clock()
        return self.cluster.clocks[host.boot]

    def _measure_clock(self) -> int:
        """Ask for its time now and again; the answer that came back soonest is the best."""
        found = []
        for _ in range(_CLOCK_TRIES):
            asked = time.monotonic_ns()
            theirs = self.cluster.answer(self.actor.clock.remote(), _CLOCK_SECONDS)
            back = time.monotonic_ns()
            found.append((back - asked, theirs - (asked + back) // 2))
        return int(min(found)[1])
