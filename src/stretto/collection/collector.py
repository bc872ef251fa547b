"""Collector: steps worlds with policies and yields experience, cut into rollouts or into segments."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np

from stretto.budget import NativeThreads
from stretto.collection.experience import Rollout, Segment
from stretto.collection.stage import BlockStage
from stretto.collection.tasks import RolloutTasks, Trial
from stretto.collection.trial_log import TrialLog
from stretto.collection.turn_stage import Turns, stage_of
from stretto.core import AgentId
from stretto.errors import UsageError
from stretto.policies.ahead import Counted
from stretto.policies.questions import Runner
from stretto.rollout import Advance, Slots, play
from stretto.seeding.streams import SeedTree

if TYPE_CHECKING:
    from stretto.collection.worlds import BlockWorlds


T = TypeVar("T")


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
    """What plays trials and gives rollouts: see `rollout.Stage`. One that plays a trial at a time may have `play(trial)`."""

    count: int

    def advance(self, begun: Mapping[int, Trial], ready: Slots) -> Advance[list[Rollout]]: ...


class CappedStage:
    """A stage in the caller's thread that computes with so many native threads: their number may decide last bits."""

    def __init__(self, stage: RolloutStage, native: NativeThreads) -> None:
        self.count, self._stage, self._native = stage.count, stage, native
        plays: Callable[[Trial], Rollout] | None = getattr(stage, "play", None)
        self.play = None if plays is None else partial(self._capped, plays)

    def advance(self, begun: Mapping[int, Trial], ready: Slots) -> Advance[list[Rollout]]:
        return self._capped(self._stage.advance, begun, ready)

    def _capped(self, function: Callable[..., T], *args: Any) -> T:
        undo = self._native.cap()
        try:
            return function(*args)
        finally:
            if undo:
                self._native.restore(undo)


class Queue:
    """The trials `first` to `count` - 1 that are still to be played (those that are `done` are not), in this order.

    Where a call of a policy has `rows`, and a trial the one that its index gives, a slot keeps to a row if it can: of the
    trials that are next it takes one of the row of its last. Else several would want the same row, and be asked in turn.
    """

    def __init__(self, count: int, trials: Trials, done: Container[int] = (), first: int = 0) -> None:
        self.trials, self.rows = trials, 1
        self._indices = [index for index in range(count - 1, first - 1, -1) if index not in done]
        self._begun: dict[int, Trial] = {}  # what each slot was given last

    def __len__(self) -> int:
        return len(self._indices)

    def next(self, slot: int) -> Trial | None:
        """Return the next trial, unless its task depends on rollouts that are not complete; `None` if there is none."""
        if self._indices and self.trials.ready(self._indices[-1]):
            last = self._begun.pop(slot, None)  # what its tasks raise is not about the trial before
            place = -1 if last is None or self.rows == 1 else self._place(last.index % self.rows)
            self._begun[slot] = self.trials.trial(self._indices.pop(place))
            return self._begun[slot]
        return None

    def _place(self, row: int) -> int:
        """Return where the next trial stands that has this row, or the next of all if none of them has it soon."""
        for place in range(-1, -1 - min(2 * self.rows, len(self._indices)), -1):
            index = self._indices[place]
            if index % self.rows == row and self.trials.ready(index):
                return place
        return -1

    def play(self, stage: RolloutStage, taking: Callable[[], bool] | None = None) -> Iterator[Rollout]:
        """Play trials on a stage, all or as long as it is `taking` more; yield rollouts in the order in which they end.

        A slot that is free takes the next index.
        """
        try:
            next_trial = self.next if taking is None else lambda slot: self.next(slot) if taking() else None
            plays = getattr(stage, "play", None)
            if plays is not None:
                # A trial at a time, to its end: where nothing goes on meanwhile, that spares 3 µs of each.
                while (trial := next_trial(0)) is not None:
                    rollout = plays(trial)
                    self.trials.add(rollout)
                    yield rollout
                return
            for rollouts in play(stage, next_trial):
                for rollout in rollouts:
                    self.trials.add(rollout)
                yield from rollouts
        except Exception as error:
            if where := self._where(error, stage.count):
                error.add_note(f"in {where}")
            raise

    def _where(self, error: Exception, slots: int) -> str:
        """Return the trial that an error is about: by the slot or the episode that it names."""
        slot = getattr(error, "slot", getattr(getattr(error, "place", None), "slot", None))
        if slots == 1:
            slot = 0
        if slot in self._begun:
            return str(self._begun[slot])
        episode = getattr(error, "episode", None)
        trial = next((trial for trial in self._begun.values() if trial.index == episode), None)
        if trial is None:
            return ""
        return (
            f"{trial}, or in another rollout that was asked with it"
            if getattr(error, "together", False)
            else str(trial)
        )


class Collector:
    """Brings worlds and policies together. `policies` says which policy, by its number in the runner, an agent follows."""

    def __init__(
        self, worlds: BlockWorlds, runner: Runner, policies: Mapping[AgentId, int], turns: Turns | None = None
    ) -> None:
        self.worlds, self.runner, self._policies, self._turns = worlds, runner, policies, turns

    def rollouts(self, count: int, trials: Trials) -> Iterator[Rollout]:
        """Play trials 0 to `count` - 1; yield their rollouts as they end."""
        stage = stage_of(self.worlds, self.runner, self._policies, turns=self._turns)
        return Queue(count, trials).play(CappedStage(stage, NativeThreads()))

    def segments(
        self, horizon: int, trials: Trials, *, resumable: bool = False, first: int = 0, among: int | None = None
    ) -> Segments:
        """Play for ever; give `horizon` rows of every slot at a time. Each slot has a sequence of trials of its own.

        What is `resumable` remembers the actions of the trials under way, so that its state can be saved. The slots may be
        those from `first` on `among` so many.

        Raises:
            UsageError: if it is to be resumable, and these worlds or policies cannot be restored.
        """
        if resumable and (reason := why_not_resumable(self.worlds, self.runner)) is not None:
            raise UsageError(reason)
        log = TrialLog(self.worlds.count) if resumable else None
        stage = stage_of(self.worlds, self.runner, self._policies, horizon, log, self._turns)
        return Segments(stage, trials, first, stage.count if among is None else among)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of worlds and policies; may be called twice."""
        self.runner.close()
        self.worlds.close()


class Segments:
    """Segments that follow each other for ever: see `Collector.segments`."""

    def __init__(self, stage: BlockStage, trials: Trials, first: int, among: int) -> None:
        self._stage, self._trials, self._first, self._among = stage, trials, first, among
        self._begun = np.zeros(stage.count, np.int64)  # how many trials each slot has begun
        self._found = self._played([])

    def _played(self, ready: Sequence[int]) -> Iterator[Segment]:
        for segments in play(self._stage, self._next_trial, ready):
            yield from segments

    def _next_trial(self, slot: int) -> Trial:
        self._begun[slot] += 1
        return self._trials.trial(int(self._begun[slot] - 1) * self._among + self._first + slot)

    @property
    def counted(self) -> Counted:
        """How agents were asked since the beginning, in worlds that are `by_turn`."""
        return self._stage.counted

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Segment:
        return next(self._found)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on after the segment that was given last, if this is resumable."""
        begun = bool(self._begun.any())
        return {"begun": self._begun.copy(), "stage": self._stage.state() if begun else None}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has returned, before the first segment; the worlds must be new.

        Trials under way are played again from their seeds, with the actions that were taken.
        """
        if state["stage"] is not None:
            self._begun[:] = state["begun"]
            self._found = self._played(self._stage.restore(state["stage"], self._trials.trial))


def why_not_resumable(worlds: BlockWorlds, runner: Runner) -> str | None:
    """Say why trials of these worlds and policies cannot be gone on with in another process; `None` if they can."""
    if not hasattr(runner, "remember"):
        return "only agents of policies that compute in blocks can be saved in the middle of an episode, got others"
    return worlds.why_not_restorable()
