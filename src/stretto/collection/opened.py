"""Collection: worlds, policies and workers that stay, for those who collect again and again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Protocol, Self

from stretto.collection.collector import Queue, Trials
from stretto.collection.experience import Rollout
from stretto.collection.making import TrialMaker
from stretto.collection.rollouts import Rollouts
from stretto.errors import ClosedError, UsageError


class Way(Protocol):
    """Plays queues of trials, one after the other, with the same worlds and policies."""

    def play(self, queue: Queue) -> Generator[Rollout]:
        """Play what is in the queue; one that is not played to its end leaves nothing that could be used again."""

    def close(self) -> None:
        """Close worlds and end workers; may be called twice."""


class CollectionInterrupted(KeyboardInterrupt):
    """Ctrl-C during a collection; `rollouts` are those that were finished."""

    def __init__(self, rollouts: Rollouts) -> None:
        super().__init__()
        self.rollouts = rollouts


class Collection:
    """The rollouts of a policy in a world, some at a time. Use as a context manager.

    Worlds, policies and workers stay between calls of `collect`. All rollouts together are those of one call of
    `stretto.collect`. What ends a call, an error or Ctrl-C, closes it.
    """

    def __init__(self, make_way: Callable[[int], Way], trials: Trials, make: TrialMaker | None = None) -> None:
        """Prepare; `make_way(n)` makes what plays `n` rollouts first, in the worlds of `make` if they are not the user's."""
        self.trials, self.make = trials, make
        self._make_way = make_way
        self._way: Way | None = None
        self._next, self._closed = 0, False

    def collect(self, num_rollouts: int, on_rollout: Callable[[Rollout], None] = lambda _: None) -> Rollouts:
        """Play the next rollouts, so many; `on_rollout` hears of each when it ends.

        Raises:
            CollectionInterrupted: at Ctrl-C, with the rollouts that were finished.
        """
        if num_rollouts < 1:
            raise UsageError(f"num_rollouts must be at least 1, got {num_rollouts}")
        first, self._next = self._next, self._next + num_rollouts
        kept: list[Rollout] = []
        try:
            with closing(self.play(Queue(self._next, self.trials, first=first))) as found:
                for rollout in found:
                    kept.append(rollout)
                    on_rollout(rollout)
        except KeyboardInterrupt:
            raise CollectionInterrupted(Rollouts(kept)) from None
        return Rollouts(kept)

    def play(self, queue: Queue) -> Generator[Rollout]:
        """Play what is in a queue of trials; yield rollouts as they end."""
        if self._closed:
            raise ClosedError("the collection is closed, or what it played last was cut short; open a new one")
        if not len(queue):
            return
        if self._way is None:
            self._way = self._make_way(len(queue))
        whole = False
        try:
            yield from self._way.play(queue)
            whole = True
        finally:
            if not whole:  # nobody knows what its worlds and workers are at
                self.close()

    def close(self) -> None:
        """Close worlds and end workers; may be called twice."""
        self._closed = True
        if self._way is not None:
            self._way.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
