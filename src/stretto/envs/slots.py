"""What the caller knows of every slot: the arrays, the history, the tasks, and how many steps and episodes there were."""

from __future__ import annotations

import dataclasses
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from stretto.core import NextEpisode
from stretto.envs.arrays import BlockRows, Buffers, StepAll, StepAlone
from stretto.envs.counters import Counters
from stretto.envs.messages import Extras, ResetSlot, Restored, SlotPlan
from stretto.envs.restoring.history import History
from stretto.errors import Place, SlotTruncated, user_stacklevel
from stretto.missions.tasks import Tasks, TaskSource, task_of, task_source
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array, SpaceLayout
from stretto.workers.handing_out import HandingOut

Seeds = Sequence[int | None]
"""The seeds of a reset, one for each slot."""

Options = dict[str, Any] | Sequence[dict[str, Any] | None] | None
"""The options of a reset: for all slots, or a sequence with those of each."""


class SlotState:
    """Everything about the slots that must outlive a worker."""

    def __init__(
        self,
        observations: SpaceLayout,
        actions: SpaceLayout,
        count: int,
        replay_limit: int,
        mode: AutoresetMode,
        episode_seeds: bool,
    ) -> None:
        self.observations, self.actions, self.count = observations, actions, count
        self.history = History(count, actions, replay_limit)
        self.objects: list[list[Any]] = [[None] * count for _ in observations.loose]
        self.counters = Counters(count, mode)
        self.entropy = secrets.randbits(62)
        self.slot_seeds: list[int | None] = [None] * count
        self.last_reset: list[ResetSlot | None] = [None] * count
        self.buffer = 0
        self.own_buffer: dict[int, int] = {}
        self._mode, self._episode_seeds = mode, episode_seeds
        self.being_reset: frozenset[int] = frozenset()
        self._tasks: TaskSource | None = None
        self.has_tasks = False  # whether there is a source of tasks
        self.begun: set[int] = set()  # slots that began an episode in a step that nobody has received yet
        # What each slot was told to play next, by the episode in which it was told.
        self._announced: list[dict[int, NextEpisode]] = [{} for _ in range(count)]
        self._given: list[dict[int, Any]] = [{} for _ in range(count)]
        self.buffers: Buffers
        self.handing_out: HandingOut | None = None  # where users get arrays of the buffers themselves
        self.step_alone: StepAlone | None = None  # where the caller has all slots itself, in one block
        self.step_all: StepAll | None = None  # where it has all of them, one by one

    # ---- arrays ----

    def buffer_of(self, slot: int) -> int:
        """The buffer that holds the slot's last row."""
        return self.own_buffer.get(slot, self.buffer)

    def free_buffer(self, last: int) -> int:
        """A buffer to write into, other than the one that has the `last` rows; nobody has its arrays."""
        return 1 - last if self.handing_out is None else self.handing_out.free(last)

    def note_ended(self, buffer: int) -> None:
        """Take note of which episodes are over, other than by a step of all."""
        self.counters.over(self.buffers.terminated[buffer] | self.buffers.truncated[buffer])

    def ended(self, slot: int, buffer: int) -> bool:
        """Whether a row of the slot ends an episode."""
        return bool(self.buffers.terminated[buffer][slot] or self.buffers.truncated[buffer][slot])

    def row(self, slot: int) -> tuple[Any, float, bool, bool]:
        """Return a copy of the slot's last row: observation, reward, terminated, truncated."""
        *arrays, rewards, terminated, truncated = self.buffers.results(self.buffer_of(slot))
        observation = self.observations.row(arrays, self.objects, slot)
        return observation, float(rewards[slot]), bool(terminated[slot]), bool(truncated[slot])

    def gather(self, slots: Sequence[int]) -> tuple[Any, Array, Array, Array]:
        """Return copies of the last rows of `slots`: a batch of observations, rewards and both flags."""
        rows, where = np.asarray(slots, np.intp), np.array([self.buffer_of(slot) for slot in slots], np.intp)
        first, *others = sorted(set(where.tolist())) or [self.buffer]
        picked = [array[rows] for array in self.buffers.results(first)]
        for buffer in others:
            there = where == buffer
            for copied, array in zip(picked, self.buffers.results(buffer), strict=True):
                copied[there] = array[rows[there]]
        *arrays, rewards, terminated, truncated = picked
        objects = [[values[slot] for slot in slots] for values in self.objects]
        return self.observations.batch(arrays, objects), rewards, terminated, truncated

    def align(self) -> None:
        """Bring the last rows of all slots into one buffer, after slots were stepped one by one."""
        if not self.own_buffer:
            return
        target = self.buffer
        if self.handing_out is not None and not self.handing_out.is_free(target):
            target = self.free_buffer(target)
        by_source: dict[int, list[int]] = {}
        for slot in self.own_buffer if target == self.buffer else range(self.count):
            by_source.setdefault(self.buffer_of(slot), []).append(slot)
        for source, slots in by_source.items():
            if source != target:
                self.copy_rows(slots, source, target)
        self.buffer = target
        self.own_buffer.clear()

    def copy_rows(self, slots: Sequence[int], source: int, target: int) -> None:
        """Copy rows from one buffer to another."""
        rows = list(slots)
        for one, other in zip(self.buffers.results(source), self.buffers.results(target), strict=True):
            other[rows] = one[rows]

    def let_go(self) -> None:
        """Let go of all arrays: whoever holds a closed vector environment should not hold its memory."""
        self.buffers = Buffers([], [], [], [], [])
        self.step_alone = self.step_all = None
        if self.handing_out is not None:
            self.handing_out.close()
        self.handing_out = None

    def take(self, extras: Extras | None, buffer: int, slots: Sequence[int] | slice) -> None:
        """Take in what came beside the arrays, and the arrays themselves where they were sent."""
        if extras is None:
            return
        for leaf, slot, value in extras.objects:
            self.objects[leaf][slot] = value
        if extras.arrays is not None:
            for target, rows in zip(self.buffers.results(buffer), extras.arrays, strict=True):
                target[slots] = rows
        for origin in extras.origins:
            how = self.last_reset[origin.slot]
            assert how is not None
            self.history.recorded(origin, dataclasses.replace(how, slot_seed=self.slot_seeds[origin.slot]))

    def step_block(self, admitted: list[Any]) -> BlockRows:
        """Let the caller step its only block; return what it gave, as arrays that nobody else has.

        The rows kept here are to restore slots from, and those of the caller are never restored: they do not get these.
        """
        assert self.step_alone is not None
        actions = self.actions
        found = self.step_alone(admitted[0] if actions.only is not None else actions.batch(admitted, ()))
        self.counters.stepped(found[2], found[3])
        return found

    # What a request of one slot calls with its answer. Such a request must not keep an engine alive, only this.

    def stepped_some(self, slots: list[int], buffer: int, actions: list[Any], extras: Extras | None) -> None:
        """Take in the step of slots that were asked together."""
        only_reset = []
        if self._mode is AutoresetMode.NEXT_STEP:
            only_reset = [slot for slot in slots if self.ended(slot, self.buffer_of(slot))]
        self.history.stepped(actions, slots)
        self.take(extras, buffer, slots)
        self.own_buffer.update(dict.fromkeys(slots, buffer))
        ended = [slot for slot in slots if self.ended(slot, buffer)]
        counts = self.counters.counts
        counts.episodes += len(ended)
        counts.steps += len(slots) - len(only_reset)
        self.begun.update(ended if self._mode is AutoresetMode.SAME_STEP else only_reset)

    def reset_one(self, how: ResetSlot, buffer: int, extras: Extras) -> None:
        """Take in the reset of one slot."""
        self.history.reset(how)
        self.take(extras, buffer, [how.slot])
        self.own_buffer[how.slot] = buffer

    # ---- resets and tasks ----

    def plan_reset(self, seeds: Seeds, options: Options, slots: Iterable[int]) -> list[ResetSlot]:
        """Say how each of these slots is to be reset. A seed begins a new count of episodes."""
        resets = []
        for slot in slots:
            seed = seeds[slot]
            if seed is None and self._episode_seeds and self.slot_seeds[slot] is None:
                seed = SeedTree(self.entropy).child("slot", slot).seed()
            if seed is not None:
                self.slot_seeds[slot] = seed
                self.counters.episodes[slot] = 0
                self._given[slot].clear()
            elif self.last_reset[slot] is not None:
                self.counters.episodes[slot] += 1
            self._announced[slot].clear()
            self.begun.discard(slot)
            episode = int(self.counters.episodes[slot])
            own = options if options is None or isinstance(options, dict) else options[slot]
            how = ResetSlot(
                slot=slot,
                seed=seed,
                options=self._with_task(slot, episode, own),
                episode=episode,
                slot_seed=seed,
                entropy=self.entropy,
                next=self.coming_by_task([slot]).get(slot),
            )
            resets.append(how)
        return resets

    def set_tasks(self, tasks: Tasks | None) -> None:
        """Use another source from now on; episodes that have begun keep their task."""
        self._tasks = None if tasks is None else task_source(tasks)
        self.has_tasks = tasks is not None
        for slot, given in enumerate(self._given):
            self._given[slot] = {e: task for e, task in given.items() if e <= self.counters.episodes[slot]}

    def task(self, slot: int, episode: int) -> Any:
        """Return the task of an episode; asked again, the same."""
        given = self._given[slot]
        if episode not in given:
            assert self._tasks is not None
            seed = self.slot_seeds[slot]
            tree = SeedTree(self.entropy).child("slot", slot) if seed is None else SeedTree(seed)
            given[episode] = task_of(self._tasks, slot, episode, tree)
            for old in [number for number in given if number < episode - 1]:
                del given[old]
        return given[episode]

    def _with_task(self, slot: int, episode: int, options: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Add the task of an episode to its options, which may have one themselves."""
        task = {} if self._tasks is None else {"task": self.task(slot, episode)}
        return None if options is None and not task else {**task, **(options or {})}

    def coming(self, episodes: Mapping[int, NextEpisode]) -> dict[int, NextEpisode]:
        """Return what slots play next: as they are told, and with their tasks, unless they are told another."""
        return {
            slot: episode
            if episode.idle
            else NextEpisode(episode.seed, self._with_task(slot, self._episode(slot) + 1, episode.options))
            for slot, episode in episodes.items()
        }

    def coming_by_task(self, slots: Iterable[int]) -> dict[int, NextEpisode]:
        """Return what slots play next where only their tasks say so; nothing where there are none."""
        return {} if self._tasks is None else self.coming(dict.fromkeys(slots, NextEpisode()))

    def told_next(self, episodes: Mapping[int, NextEpisode], _: object = None) -> None:
        """Take note that a worker knows what comes next."""
        for slot, episode in episodes.items():
            self.history.told_next(slot, episode)
            now, before = self._episode(slot), self._announced[slot]
            self._announced[slot] = {number: before[number] for number in before if number == now - 1} | {now: episode}

    def _episode(self, slot: int) -> int:
        """Return the number of the episode that a slot is in, whether or not anybody has received that it began."""
        return int(self.counters.episodes[slot]) + (slot in self.begun)

    def see_begun(self, slots: Iterable[int]) -> list[int]:
        """Return which of these slots have begun an episode with the step that is received now."""
        began = [slot for slot in slots if slot in self.begun]
        self.begun.difference_update(began)
        self.counters.begin(began)
        return began

    def task_now(self, slot: int) -> Any:
        """Return the task of the slot's episode; `None` if it has none."""
        episode, how = int(self.counters.episodes[slot]), self.last_reset[slot]
        if how is None:
            return None
        if how.episode == episode:
            options: Mapping[str, Any] | None = how.options
        elif (announced := self._announced[slot].get(episode - 1)) is not None:
            options = announced.options
        else:
            options = self._with_task(slot, episode, None)
        return (options or {}).get("task")

    # ---- what recovery asks for when a worker has died ----

    def place(self, slot: int, place: Place, count: int | None) -> Place:
        """Add to a place where its slot is; `count` is what its group has counted, if that is known."""
        episode = self._episode(slot) if self.history.was_reset[slot] else None
        step, doing = None, place.doing
        if doing == "stepping" and self._waits_for_reset(slot):
            doing = "resetting"
        elif doing == "stepping" and count is not None and self.buffers.starts is not None:
            step = count - int(self.buffers.starts[slot])
        return dataclasses.replace(place, doing=doing, episode=episode, step=step, seed=self.slot_seeds[slot])

    def plans(self, slots: Iterable[int], lost_because: str | None) -> list[SlotPlan]:
        """Say how to bring slots of a new worker to where they were; if they are lost, for the reason given."""
        plans = [self._plan(slot, lost_because) for slot in slots]
        self.history.release()
        return plans

    def _plan(self, slot: int, lost_because: str | None) -> SlotPlan:
        history = self.history
        was_reset = history.was_reset[slot]
        attempts = history.attempts(slot) if lost_because is None else []
        reason = None
        if was_reset and not attempts:
            reason = lost_because or (_OVERRUN if history.overrun[slot] else _NO_POINT)
        root = self.slot_seeds[slot] if self.slot_seeds[slot] is not None else self.entropy
        episode = self._episode(slot)
        following = self._announced[slot].get(episode) or self.coming_by_task([slot]).get(slot)
        return SlotPlan(
            slot=slot,
            attempts=attempts,
            changes=history.changes(slot),
            expected=self.row(slot) if was_reset else None,
            lost_seed=SeedTree(root or 0).child("lost", slot, episode, history.end).seed(),
            lost_episode=episode,
            slot_seed=self.slot_seeds[slot],
            next=following,
            is_over=slot in self.being_reset or (was_reset and self._waits_for_reset(slot)),
            reason=reason,
        )

    def _waits_for_reset(self, slot: int) -> bool:
        """Whether the slot's episode has ended, and the next has not begun."""
        return self._mode is not AutoresetMode.SAME_STEP and self.ended(slot, self.buffer_of(slot))

    def restored(self, result: Restored) -> None:
        """Count what a new worker has restored, and warn of what it could not."""
        self.counters.counts.replayed_steps += result.replayed
        self.counters.counts.truncations += len(result.lost)
        for slot, reason in result.lost.items():
            self.history.forget(slot)
            self.history.was_reset[slot] = True  # to the observation that ends the lost episode
            message = f"the episode of slot {slot} was truncated: {reason}"
            warnings.warn(message, SlotTruncated, stacklevel=user_stacklevel())


_OVERRUN = "its worker died more than replay_limit steps after the last point from which it can be restored"
_NO_POINT = "its worker died, and it cannot be restored: it has no np_random of its own, and was not reset with a seed"
