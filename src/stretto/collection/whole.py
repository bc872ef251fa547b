"""Whole rollouts, one after the other: in the caller first, and in workers where that takes so long that they pay."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator
from functools import partial

from stretto.autotune import MOST_WAITING_WORKERS
from stretto.budget import CpuBudget, Lease, NativeThreads
from stretto.collection.collector import CappedStage, Queue, Trials
from stretto.collection.experience import Rollout
from stretto.collection.look import Choosing
from stretto.collection.making import TrialMaker
from stretto.collection.plain_stage import PlainStage
from stretto.collection.stage import BlockStage
from stretto.collection.whole_options import WholeOptions
from stretto.collection.worker_stage import FirstSteps, TrialPlayer, WorkerStage
from stretto.errors import RunsHere, user_stacklevel
from stretto.workers.agreement import leave_out_who_differs
from stretto.workers.backends import MESSAGE_PROCESS, PROCESS, on_cluster
from stretto.workers.base import Backend
from stretto.workers.cluster import Cluster
from stretto.workers.mail import unsendable
from stretto.workers.supervisor import Supervisor

TRIAL_SECONDS, WORTH_STARTING_SECONDS = 0.2, 1.0
"""How long rollouts are played in the caller at least, and how long the rest must take for workers to be worth it."""

WAITING_TRIAL_SECONDS = 0.05
"""How long at least where rollouts mostly wait: they do that in workers as well, whatever else goes on."""

WORTH_ASKING_SECONDS = 0.02
"""How long the rest must take if the workers are there already."""


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
        if not self._played:
            return cores
        return max(cores, min(MOST_WAITING_WORKERS, round(cores / max(self._busy, 1e-3))))


def player_of(make: TrialMaker, choosing: Choosing, options: WholeOptions) -> TrialPlayer:
    """Return what plays whole trials."""
    world = make.spec()
    return TrialPlayer(make, *choosing.plans(world), world, choosing.turns, options.global_rng, options.checks)


class WholeWay:
    """Plays whole rollouts: in the caller, and in workers where these pay. Both stay there between queues."""

    def __init__(
        self, player: TrialPlayer, budget: CpuBudget, options: WholeOptions, cluster: Cluster | None = None
    ) -> None:
        self._player, self._budget, self._options, self._cluster = player, budget, options, cluster
        self._cores = max(1, budget.free // options.native_threads)
        self._asked = options.workers
        backend = options.backend
        self._in_place = backend == "serial" or (backend == "auto" and not options.isolate)
        if self._in_place and (backend == "serial" or not _can_leave(player, self._asked or self._cores)):
            self._asked = 1
        self._pace, self._native = Pace(), NativeThreads(options.native_threads)
        self._here: PlainStage | BlockStage | None = None
        self._workers: WorkerStage | None = None
        self._lease: Lease | None = None

    def play(self, queue: Queue) -> Generator[Rollout]:
        """Play what is in the queue."""
        if self._in_place:
            yield from self._play_here(queue)
        if len(queue):
            yield from queue.play(self._elsewhere(len(queue), queue.trials))

    def _play_here(self, queue: Queue) -> Generator[Rollout]:
        wall, computed = time.perf_counter, time.thread_time
        if self._here is None:
            with self._native.capped():
                self._here = self._player.stage()
        stage = CappedStage(self._here, self._native)
        if self._asked == 1:  # there is nothing to decide, and reading clocks takes 2 µs
            yield from queue.play(stage)
            return
        began = wall(), computed()
        for rollout in queue.play(stage, lambda: self._stays(len(queue))):
            self._pace.add(wall() - began[0], computed() - began[1])
            yield rollout
            began = wall(), computed()

    def _stays(self, left: int) -> bool:
        """Whether the next rollout is played in the caller, if so many are left."""
        pace = self._pace
        if (self._asked or pace.workers(self._cores)) == 1:
            return True
        if self._workers is not None:
            return pace.seconds_for(left) < WORTH_ASKING_SECONDS
        least = WAITING_TRIAL_SECONDS if pace.workers(self._cores) > self._cores else TRIAL_SECONDS
        return pace.seconds < least or pace.seconds_for(left) < WORTH_STARTING_SECONDS

    def _elsewhere(self, left: int, trials: Trials) -> WorkerStage:
        options, wanted = self._options, min(self._asked or self._pace.workers(self._cores), left)
        if self._workers is not None and self._workers.wanted < wanted:
            if self._cluster is None:
                self._workers.grow(wanted)
            else:  # whether others can be used is found out when all are started
                self._close_workers()
        if self._workers is None:
            self._lease = self._budget.lease((self._asked or self._cores) * options.native_threads)
            self._workers = WorkerStage(
                self._player,
                wanted,
                limit_seconds=options.limit_seconds,
                max_restarts=options.restarts,
                native_threads=options.native_threads,
                backend=self._backend,
                prepare=partial(self._compare_nodes, trials),
                started_together=self._cores if self._asked is None and self._cluster is None else None,
            )
        return self._workers

    @property
    def _backend(self) -> Backend:
        if self._cluster is not None:
            return on_cluster(self._cluster)
        return MESSAGE_PROCESS if self._options.transport == "message" else PROCESS

    def _compare_nodes(self, trials: Trials, supervisor: Supervisor) -> None:
        """Use those nodes alone that play the first steps as most do."""
        if self._cluster is not None:
            message = FirstSteps(trials.trial(0))
            doing, limit = "playing the first steps", self._options.limit_seconds
            leave_out_who_differs(supervisor, self._cluster, message, doing, limit)

    def _close_workers(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None
        if self._cluster is not None:
            self._cluster.use_all()
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def close(self) -> None:
        """Close worlds and end workers; may be called twice."""
        try:
            self._close_workers()
        finally:
            if self._here is not None:
                self._here.close()
                self._here = None


def _can_leave(player: TrialPlayer, workers: int) -> bool:
    """Whether rollouts can be played in other processes; say so if they cannot and should."""
    reason = unsendable(player)
    if reason is not None and workers > 1:
        warnings.warn(RunsHere(f"rollouts are played in this process alone: {reason}"), stacklevel=user_stacklevel())
    return reason is None
