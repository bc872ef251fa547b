"""Collector: steps worlds with policies and yields experience, cut into rollouts or into segments."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Protocol, Self

import numpy as np

from stretto.collection.experience import Rollout, Segment
from stretto.collection.stage import BlockStage
from stretto.collection.tasks import RolloutTasks, Trial
from stretto.collection.worlds import BlockWorlds
from stretto.core import AgentId
from stretto.policies.runners import Runner
from stretto.rollout import Advance, Slots, play
from stretto.seeding import SeedTree


class Trials:
    """The trials of a collection by index: the task, the seeds and the streams of each follow from that alone."""

    def __init__(
        self, seed: int, tasks: RolloutTasks | None = None, episodes: int = 1, *, numbered: bool = False
    ) -> None:
        self._tree, self._tasks, self._episodes, self._numbered = SeedTree(seed), tasks, episodes, numbered
        self._seen: dict[int, Rollout] = {}
        self._complete: list[Rollout] = []

    def ready(self, index: int) -> bool:
        """Whether all is known that the task of a trial depends on."""
        return self._tasks is None or self._tasks.needed(index) <= len(self._complete)

    def trial(self, index: int) -> Trial:
        """Return a trial that is `ready`."""
        tree = self._tree.child("rollout", index)
        if self._tasks is None:
            return Trial(index, None, False, self._episodes, tree, self._numbered)
        seen = self._complete[: self._tasks.needed(index)]
        task = self._tasks.task(index, tree.child("task").generator(), seen)
        return Trial(index, task, True, self._episodes, tree, self._numbered)

    def add(self, rollout: Rollout) -> None:
        """Take note of a rollout that is complete, if later tasks may depend on it."""
        if self._tasks is None or not self._tasks.needed(1 << 62):
            return
        self._seen[rollout.index] = rollout
        while len(self._complete) in self._seen:
            self._complete.append(self._seen.pop(len(self._complete)))


class RolloutStage(Protocol):
    """What plays trials and gives rollouts: see `rollout.Stage`."""

    count: int

    def advance(self, begun: Mapping[int, Trial], ready: Slots) -> Advance[list[Rollout]]: ...


class Queue:
    """The trials 0 to `count` - 1 that are still to be played (those that are `done` are not), in this order."""

    def __init__(self, count: int, trials: Trials, done: Container[int] = ()) -> None:
        self.trials = trials
        self._indices = [index for index in range(count - 1, -1, -1) if index not in done]
        self._begun: dict[int, Trial] = {}  # what each slot was given last

    def __len__(self) -> int:
        return len(self._indices)

    def next(self, slot: int) -> Trial | None:
        """Return the next trial, unless its task depends on rollouts that are not complete; `None` if there is none."""
        if self._indices and self.trials.ready(self._indices[-1]):
            self._begun.pop(slot, None)  # what its tasks raise is not about the trial before
            self._begun[slot] = self.trials.trial(self._indices.pop())
            return self._begun[slot]
        return None

    def play(self, stage: RolloutStage, taking: Callable[[], bool] = lambda: True) -> Iterator[Rollout]:
        """Play trials on a stage, as long as it is `taking` more; yield rollouts in the order in which they end.

        A slot that is free takes the next index.
        """
        try:
            for rollouts in play(stage, lambda slot: self.next(slot) if taking() else None):
                for rollout in rollouts:
                    self.trials.add(rollout)
                yield from rollouts
        except Exception as error:
            slot = 0 if stage.count == 1 else getattr(getattr(error, "place", None), "slot", None)
            if slot in self._begun:
                error.add_note(f"in {self._begun[slot]}")
            raise


class Collector:
    """Brings worlds and policies together. `policies` says which policy, by its number in the runner, an agent follows."""

    def __init__(self, worlds: BlockWorlds, runner: Runner, policies: Mapping[AgentId, int]) -> None:
        self.worlds, self.runner, self._policies = worlds, runner, policies

    def rollouts(self, count: int, trials: Trials) -> Iterator[Rollout]:
        """Play trials 0 to `count` - 1; yield their rollouts as they end."""
        return Queue(count, trials).play(BlockStage(self.worlds, self.runner, self._policies))

    def segments(self, horizon: int, trials: Trials) -> Iterator[Segment]:
        """Play for ever; yield `horizon` rows of every slot at a time. Each slot has a sequence of trials of its own."""
        stage = BlockStage(self.worlds, self.runner, self._policies, horizon)
        played = np.zeros(stage.count, np.int64)

        def next_trial(slot: int) -> Trial:
            played[slot] += 1
            return trials.trial(int(played[slot] - 1) * stage.count + slot)

        for segments in play(stage, next_trial):
            yield from segments

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of worlds and policies; may be called twice."""
        self.runner.close()
        self.worlds.close()
