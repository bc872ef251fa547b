"""Whole rollouts, one after the other: in the caller first, and in workers where that takes so long that they pay."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any

from stretto.budget import CpuBudget
from stretto.collection.collector import Queue
from stretto.collection.experience import Rollout
from stretto.collection.worker_stage import TrialPlayer, WorkerStage
from stretto.envs.autotune import MOST_WAITING_WORKERS
from stretto.errors import RunsHere, user_stacklevel
from stretto.workers.backends import backend_named
from stretto.workers.mail import unsendable

TRIAL_SECONDS, WORTH_SECONDS = 0.2, 1.0
"""How long rollouts are played in the caller at least, and how long the rest must take for workers to be worth it."""

WAITING = 0.5
"""A world and a policy that compute for a smaller share of the time than this wait, for a sleep or for another program."""


class Pace:
    """How long rollouts take in the caller, and the share of that time for which it computes."""

    def __init__(self) -> None:
        self.seconds, self._played, self._busy = 0.0, 0, 0.0

    def add(self, seconds: float, computed_seconds: float) -> None:
        """Take note of a rollout."""
        self.seconds += seconds
        self._played += 1
        # The greatest share: on a loaded machine the others waited for a core, and that is no reason for more workers.
        self._busy = max(self._busy, min(1.0, computed_seconds / max(seconds, 1e-9)))

    def seconds_for(self, rollouts: int) -> float:
        """Return what so many more would take here."""
        return rollouts * self.seconds / max(1, self._played)

    def workers(self, cores: int) -> int:
        """Return how many workers so many cores can bear: more than one a core where they mostly wait."""
        if not self._played or self._busy >= WAITING:
            return cores
        return max(cores, min(MOST_WAITING_WORKERS, math.ceil(cores / max(self._busy, 1e-3))))


def play_whole(player: TrialPlayer, queue: Queue, budget: CpuBudget, options: Mapping[str, Any]) -> Generator[Rollout]:
    """Play what is in the queue; `options` are those of `make_vec`."""
    backend, asked, isolate = options.get("backend", "auto"), options.get("workers"), options.get("isolate", False)
    if backend != "auto":
        backend_named(backend)
    in_place = backend == "serial" or (backend == "auto" and not isolate)
    if in_place and (backend == "serial" or not _can_leave(player, asked or budget.free)):
        asked = 1
    pace = Pace()
    if in_place:

        def stays() -> bool:
            few = (asked or pace.workers(budget.free)) == 1
            return few or pace.seconds < TRIAL_SECONDS or pace.seconds_for(len(queue)) < WORTH_SECONDS

        yield from _play_here(player, queue, pace, stays)
    if len(queue):
        limit, restarts = options.get("step_timeout", 60.0), options.get("max_restarts", 3)
        if options.get("on_crash") == "raise":
            restarts = 0
        workers = min(asked or pace.workers(budget.free), len(queue))
        lease = budget.lease(asked or budget.free)
        elsewhere = WorkerStage(player, workers, limit_seconds=limit, max_restarts=restarts)
        try:
            yield from queue.play(elsewhere)
        finally:
            elsewhere.close()
            lease.release()


def _can_leave(player: TrialPlayer, workers: int) -> bool:
    """Whether rollouts can be played in other processes; say so if they cannot and should."""
    reason = unsendable(player)
    if reason is not None and workers > 1:
        warnings.warn(RunsHere(f"rollouts are played in this process alone: {reason}"), stacklevel=user_stacklevel())
    return reason is None


def _play_here(player: TrialPlayer, queue: Queue, pace: Pace, stays: Callable[[], bool]) -> Generator[Rollout]:
    stage = player.stage()
    wall, computed = time.perf_counter, time.thread_time
    began = wall(), computed()
    try:
        for rollout in queue.play(stage, stays):
            pace.add(wall() - began[0], computed() - began[1])
            yield rollout
            began = wall(), computed()
    finally:
        stage.close()
