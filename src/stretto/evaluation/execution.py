"""Execution: where a plan is played, and how: the parts of `evaluate` that change no result."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto.budget import CpuBudget
from stretto.errors import FewerWorkers, RunsHere, UsageError, user_stacklevel
from stretto.evaluation.plan import PlaySettings
from stretto.evaluation.records import EpisodeRecord
from stretto.policies.spec import STRATEGIES
from stretto.workers.backends import PROCESS, SERIAL, on_cluster
from stretto.workers.base import Backend
from stretto.workers.cluster import Cluster
from stretto.workers.mail import unsendable


@dataclass(frozen=True, slots=True)
class Execution:
    """Where a plan is played, and how: `jobs` is how many processes may compute, 0 where all happens in the caller."""

    settings: PlaySettings
    jobs: int
    parallel_policy: bool
    reverse: bool
    cluster: Cluster | None = None

    @property
    def backend(self) -> Backend:
        """Where the processes are."""
        if self.cluster is not None:
            return on_cluster(self.cluster)
        return PROCESS if self.jobs else SERIAL

    def split(self, tasks: int, agents: int) -> tuple[int, int]:
        """Return how many processes play episodes, and how many cores each has for its agents.

        Episodes come first, or, with `parallel_policy`, agents.
        """
        if self.cluster is not None:  # each has what it was given there
            return max(1, min(self.jobs, tasks)), max(1, int(self.cluster.num_cpus))
        if self.parallel_policy:
            cores = max(1, min(self.jobs, agents))
            return max(1, min(self.jobs // cores, tasks)), cores
        workers = max(1, min(self.jobs, tasks))
        return workers, max(1, self.jobs // workers)


def check_where(strategy: str, jobs: int | None, cluster: object = None) -> None:
    """Refuse where and how something cannot be played."""
    if strategy not in STRATEGIES:
        raise UsageError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int)):
        raise UsageError(f"jobs must be a whole number, got {jobs!r}; leave it out for one a core")
    if cluster is not None and jobs == 0:
        raise UsageError(
            "on a cluster nothing is played in the caller, got jobs=0; leave it out for all cores of the nodes"
        )
    if jobs is not None and jobs < 0:
        raise UsageError(f"jobs must be at least 0, got {jobs}; 0 plays everything in the caller")


def jobs_within(budget: CpuBudget, jobs: int | None, native_threads: int) -> int:
    """Return how many processes compute, each with its native threads: no more than there are cores for."""
    if jobs is None:
        return max(1, budget.free // native_threads)
    most = max(1, budget.total // native_threads)
    if native_threads == 1 or jobs <= most:  # a number of processes by itself is the user's to choose
        return jobs
    reason = (
        f"jobs is {most} instead of {jobs}: {jobs} jobs of {native_threads} native threads need {jobs * native_threads} "
        f"cores, and {budget.total} are there"
    )
    warnings.warn(FewerWorkers(reason), stacklevel=user_stacklevel())
    return most


def jobs_elsewhere(factory: object, jobs: int, cluster: Cluster | None) -> int:
    """Return how many processes play a plan: none if it cannot be sent there, which is said."""
    if not jobs or (reason := unsendable(factory)) is None:
        return jobs
    if cluster is not None:
        raise UsageError(
            f"what is played on a cluster must be picklable, and this is not: {reason}; name it by its module"
        )
    why = f"everything is played in this process, because not all of it can be sent to others: {reason}"
    warnings.warn(RunsHere(why), stacklevel=user_stacklevel())
    return 0


def where(records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Return how many episodes each node of a cluster has played, if there was one."""
    counts = Counter(str(record.timing["node"]) for record in records if "node" in record.timing)
    return {"nodes": dict(sorted(counts.items()))} if counts else {}
