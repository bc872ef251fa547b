"""Nodes: where the two sides of a run compute if that is on a cluster, and whether its nodes compute alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stretto.collection.experience import Segment
from stretto.collection.making import TrialMaker
from stretto.collection.pieces import piece_of
from stretto.collection.share_messages import FirstRows
from stretto.collection.share_service import SharePlayer
from stretto.collection.share_workers import ShareWorkplace
from stretto.collection.shares import joined_segments
from stretto.collection.whole_options import whole_options
from stretto.core import AgentKind, BlockPolicy
from stretto.errors import UsageError
from stretto.storage.copies import packed
from stretto.storage.of_layout import buffer_of
from stretto.training.blocks import policy_numbers
from stretto.training.learners.base import Learner, LearnerBlock
from stretto.workers.agreement import leave_out_who_differs
from stretto.workers.backends import on_cluster
from stretto.workers.base import Backend
from stretto.workers.cluster import Cluster
from stretto.workers.mail import unsendable
from stretto.workers.supervisor import Supervisor

LEARNERS_SHARE = 4
"""One worker in so many learns, the others collect; but there is one of each at least."""


@contextmanager
def nodes_of(cluster: Cluster | None) -> Iterator[Nodes | None]:
    """Give the workers of a cluster to a run, if there is one."""
    if cluster is None:
        yield None
        return
    # Only nodes that were compared are used, and actors of an earlier run may be on some of them alone: new ones are spread
    # over all nodes.
    cluster.release()
    try:
        yield Nodes.of(cluster)
    finally:
        cluster.use_all()


@dataclass(frozen=True)
class Nodes:
    """Workers of a cluster for a run: so many, if the run does not say how many. `room` says whether there could be one more.

    `compare` is given the workers that collect, a message and a limit; it leaves out nodes that answer otherwise than others.
    """

    backend: Backend
    workers: int
    room: Callable[[], bool] = lambda: True
    compare: Callable[[Supervisor, object, float | None], object] = lambda *_: None

    @classmethod
    def of(cls, cluster: Cluster) -> Nodes:
        """Return all workers of a cluster."""

        def compare(supervisor: Supervisor, message: object, limit: float | None) -> None:
            leave_out_who_differs(supervisor, cluster, message, "playing and learning from the first rows", limit)

        return cls(on_cluster(cluster), cluster.budget.total, cluster.has_room, compare)

    def split(self, workers: int | None, environments: int, agents: int) -> tuple[int, int]:
        """Return how many workers collect, and how many learn: none if the only one collects."""
        count = workers or self.workers
        learning = min(agents, max(1, count // LEARNERS_SHARE)) if count > 1 else 0
        return max(1, min(environments, count - learning)), learning

    def place(self, workers: int, options: Mapping[str, Any]) -> tuple[ShareWorkplace, dict[str, Any]]:
        """Return where shares are played, in so many workers, and what else players are told of the options of `make_vec`."""
        how, unfit = whole_options({name: value for name, value in options.items() if name != "backend"})
        if options.get("backend", "auto") not in ("auto", "ray"):
            unfit = f"backend={options['backend']!r}"
        if unfit:
            raise UsageError(
                f"on a cluster each worker steps plain environments by itself, got {unfit}; leave that out"
            )
        found = ShareWorkplace(
            self.backend,
            workers,
            how.native_threads,
            how.limit_seconds,
            how.restarts,
            self.room,
            lambda supervisor: self.compare(supervisor, FirstRows(), how.limit_seconds),
            self.workers,
        )
        return found, {"global_rng": how.global_rng, "checks": how.checks}


def player_of(
    make: TrialMaker,
    build: Callable[[int], Learner],
    parts: Sequence[int],
    blocks: Sequence[LearnerBlock],
    kinds: Sequence[AgentKind],
    **rest: Any,
) -> SharePlayer:
    """Return what plays shares of a run in a worker, with the `rest` of a `SharePlayer`."""
    numbers = policy_numbers([block.agents for block in blocks], kinds)
    policies, check = partial(_policies, build, len(blocks)), partial(learned_digest, build, blocks)
    player = SharePlayer(make, policies, parts, numbers, check=check, **rest)
    if reason := unsendable(player):
        raise UsageError(f"what is played on a cluster must be picklable, and this is not: {reason}")
    return player


def _policies(build: Callable[[int], Learner], count: int) -> list[BlockPolicy]:
    """Make the learners of a run for their policies alone."""
    return [build(number).policy for number in range(count)]


def learned_digest(build: Callable[[int], Learner], blocks: Sequence[LearnerBlock], segment: Segment) -> str:
    """Return what this machine gives that learns from the segment of one slot: a digest for a block of each kind.

    What else the buffers have lanes for is there as the same slot again: batches have the shapes of the plan.
    """
    found = hashlib.sha256()
    of_kinds = {(str(one.observation_space), str(one.action_space)): number for number, one in enumerate(blocks)}
    for number in of_kinds.values():
        learner, block = build(number), blocks[number]
        with buffer_of(learner.layout) as buffer, np.errstate(over="ignore", invalid="ignore"):
            buffer.extend(piece_of(joined_segments([segment] * block.lanes), buffer.block))
            learner.learn(buffer.snapshot(), 0.0, np.ones(len(block.agents), np.bool_))
        found.update(packed(learner.state()))
    return found.hexdigest()
