"""Single worlds as a group: where stepping, seeding and autoreset of worlds exist, for every backend."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gymnasium.vector import AutoresetMode

from stretto.adapters.blocks import native
from stretto.adapters.gymnasium import StepFunction
from stretto.core import NextEpisode
from stretto.envs.arrays import Rows
from stretto.envs.infos import SlotInfo, pack
from stretto.envs.messages import Built, Extras, Origin, ResetSlot, SlotPlan
from stretto.envs.slot import NEVER, Clock, GroupSettings, Maker, Slot, Started
from stretto.errors import Place
from stretto.identity.watched_globals import classes_of
from stretto.outputs import check_observation, check_scalars, plainly_right
from stretto.seeding import watching_many
from stretto.spaces import SpaceLayout, has_shape, same_space


class EnvGroup:
    """Single worlds for the slots from `first` on, one for each of `makers`.

    `position[0]` changes whenever the group moves on; it is how others see which world it is at, and that it moves.
    `position[1]` counts steps of all.
    """

    def __init__(
        self, makers: Sequence[Maker], first: int, settings: GroupSettings, worker: int, position: memoryview[int]
    ) -> None:
        self.first, self.worker, self.position = first, worker, position
        self._first_slot = settings.first_slot
        self.count = len(makers)
        self.everyone = range(self.count)
        self.units: Sequence[range] = [range(i, i + 1) for i in self.everyone]
        self.ended = True
        self._span = range(first, first + self.count)
        self.layout: SpaceLayout
        self.action_layout: SpaceLayout
        self._shape: tuple[int, ...] = ()  # of the only array that an observation is, if it is one
        self._length: int | None = None  # of a row of numbers
        self._converts = False  # whether numpy has to convert what worlds observe
        self.refuse: Callable[[Any], None] | None = self._refuse
        self._doing = "building"
        self.clock = Clock(self.count)
        self._no_flags = bytes(self.count)
        self.steps: list[StepFunction] = [_not_built] * self.count
        self.slots = [
            Slot(first + i, maker, settings, self.steps, i, self.clock, self.place) for i, maker in enumerate(makers)
        ]
        self._others: dict[int, tuple[Any, Any]] = {}
        self._entries: list[SlotInfo] = []
        self._origins: list[Origin] = []
        for slot in self.slots:
            slot.origins = self._origins
        self._finished = {
            AutoresetMode.NEXT_STEP: self._wait_for_next_step,
            AutoresetMode.DISABLED: self._wait_for_next_step,
            AutoresetMode.SAME_STEP: self._reset_in_same_step,
        }[settings.autoreset_mode]

    def build(self) -> None:
        for i, slot in enumerate(self.slots):
            self._move_on(i, "building")
            slot.build()
        head = self.slots[0].env
        self.layout, self.action_layout = SpaceLayout(head.observation_space), SpaceLayout(head.action_space)
        if self.layout.only is not None:
            self._shape = shape = self.layout.only.shape
            self._length = shape[0] if len(shape) == 1 else None
        if hasattr(head, "kinds"):
            self.refuse = None  # its arrays are ours, and always of the right shapes
        looks_right = plainly_right(self.layout)
        for slot in self.slots:
            observed, acted = slot.env.observation_space, slot.env.action_space
            alike = same_space(observed, head.observation_space)
            slot.layout = self.layout if alike else SpaceLayout(observed)
            slot.looks_right = looks_right if alike else plainly_right(slot.layout)
            if not alike or not same_space(acted, head.action_space):
                self._others[slot.number] = observed, acted

    def describe(self) -> Built:
        env = self.slots[0].env
        return Built(
            observation_space=env.observation_space,
            action_space=env.action_space,
            metadata=dict(env.metadata),
            render_mode=env.render_mode,
            spec=env.spec,
            agents=getattr(env, "kinds", None),
            others=self._others,
        )

    def classes(self) -> set[type]:
        return {kind for slot in self.slots for env in (slot.env, native(slot.env)) for kind in classes_of(env)}

    def show_starts(self, starts: memoryview[int]) -> None:
        starts[:] = self.clock.starts
        self.clock.starts = starts

    def _move_on(self, i: int, doing: str) -> None:
        self._doing = doing
        self.slots[i].resetting = False
        self.slots[i].count()
        self.position[0] = i + 1

    def place(self) -> Place:
        i = self.position[0] - 1
        slot = self.slots[i if 0 <= i < self.count else 0]
        doing = "resetting" if slot.resetting else self._doing
        place = Place(doing, worker=self.worker, slot=self._first_slot + slot.number, seed=slot.seed)
        if slot.episode < 0:
            return place
        step = self.clock.now - self.clock.starts[slot.number - self.first] if doing == "stepping" else None
        return replace(place, episode=slot.episode, step=step)

    # ---- resetting and stepping ----

    def reset(self, resets: Sequence[ResetSlot], rows: Rows) -> Extras:
        self._begin()
        for how in resets:
            i = how.slot - self.first
            self._move_on(i, "resetting")
            observation, info = self.slots[i].reset(how)
            self._write(rows, i, observation)
            rows.rewards[i] = 0.0
            rows.terminated[i] = rows.truncated[i] = False
            if info:
                self._entries.append((how.slot, info))
        return self._extras()

    def step(self, indices: Sequence[int], actions: Iterable[Any], rows: Rows) -> Extras | None:
        if self._entries or self._origins:
            self._begin()
        everyone = indices is self.everyone
        clock = self.clock
        if everyone:
            self.position[1] = clock.now = clock.now + 1
            if clock.now >= clock.alarm:
                self.cut_episodes()
            rows.terminated[:] = rows.truncated[:] = self._no_flags
        else:
            for i in indices:  # the clock stands for all: these have made a step more than it says
                slot = self.slots[i]
                clock.starts[i] -= 1
                slot.recorded -= 1
                if slot.ends < NEVER:
                    slot.ends -= 1
                    clock.alarm = min(clock.alarm, slot.ends)
                    if slot.ends <= clock.now:
                        slot.cut()
                rows.terminated[i] = rows.truncated[i] = False
        if clock.watched:
            watching_many(self._run, indices, actions, rows)
        else:
            self._run(indices, actions, rows)
        return self._extras(self._span if everyone else None) if self._entries or self._origins else None

    def begin_alone(self, how: ResetSlot) -> Any:
        """Reset the only world, and return its first observation.

        Whoever plays it then does what `step` does: see `go_on_alone`.
        """
        self._begin()
        self._move_on(0, "resetting")
        observation, _ = self.slots[0].reset(how)
        self._doing = "stepping"
        return observation

    def go_on_alone(self) -> tuple[StepFunction, int]:
        """Begin a step of the only world; return what does it, and how many steps it does before this is to be called again.

        Whoever does them lets `clock` go on with all but the first.
        """
        clock, slot = self.clock, self.slots[0]
        clock.now += 1
        if clock.now >= clock.alarm:
            self.cut_episodes()
        settled = slot.unchecked <= 0 and not slot.guard.on_probation
        return self.steps[0], max(1, clock.alarm - clock.now) if settled else 1

    def number(self, reward: Any, now: int) -> float:
        """Return the reward of the only world's step `now` as a number, or raise."""
        try:
            return float(array("d", (reward,))[0])
        except (TypeError, ValueError):
            self.clock.now = now
            check_scalars(reward, False, False, self.place())
            raise

    def cut_episodes(self) -> None:
        """Let the next steps of worlds be their last whose time is over."""
        clock = self.clock
        for slot in self.slots:
            if slot.ends <= clock.now:
                slot.cut()
        clock.alarm = min((slot.ends for slot in self.slots if slot.ends > clock.now), default=NEVER)

    def _run(self, indices: Sequence[int], actions: Iterable[Any], rows: Rows) -> None:
        """The hot loop: everything known beforehand is settled before it, everything rare is behind a branch.

        Over the bare calls of `step` and the copy of the observation it costs 0.3 µs a world. Flags are cleared in
        bulk and written only when true; a world that waits for its reset has another function in `steps`. Of a row of
        numbers an array of its type and length is written as bytes, in two thirds of the time that numpy takes. All
        else numpy converts; shapes are looked at first, because it repeats a value until it fills its row. Rewards are no
        numpy array's business: it would take None for NaN and "1.5" for 1.5.
        """
        self._doing, self.ended = "stepping", False
        position, target, length, shape = self.position, rows.target, self._length, self._shape
        exact = None if self._converts else rows.exact
        steps = self.steps if indices is self.everyone else [self.steps[i] for i in indices]
        rewards = rows.rewards
        # Not strict: there are as many actions as indices, and to ask an array for one more takes 0.5 µs.
        for i, step, action in zip(indices, steps, actions, strict=False):
            position[0] = i + 1
            observation, reward, terminated, truncated, info = step(action)
            try:
                rewards[i] = reward
                if terminated or truncated:
                    self.ended = True
                    rows.terminated[i] = bool(terminated)
                    rows.truncated[i] = bool(truncated)
                    observation, info = self._finished(i, observation, info)
            except (TypeError, ValueError):  # no number, or an array, which is neither true nor false
                check_scalars(reward, terminated, truncated, self.place())
                raise
            if exact is not None:
                try:
                    exact[i][:] = observation
                except (TypeError, ValueError):
                    self._write(rows, i, observation)
                    self._converts = True
            elif length is not None:
                try:
                    if len(observation) != length:
                        self._refuse(observation)
                except TypeError:
                    self._refuse(observation)
                target[i] = observation
            else:
                if observation is None or (shape and getattr(observation, "shape", None) != shape):
                    self._refuse(observation)
                target[i] = observation
            if info:
                self._entries.append((self.first + i, info))

    def _write(self, rows: Rows, i: int, observation: Any) -> None:
        """Write a row as numpy converts it, if it has the right shape."""
        self.check_shape(observation)
        rows.target[i] = observation

    def check_shape(self, observation: Any) -> None:
        """Raise unless what the world that the group is at observed has the right shape."""
        if observation is None or (self._shape and not has_shape(observation, self._shape)):
            self._refuse(observation)

    def _wait_for_next_step(self, i: int, observation: Any, info: dict[str, Any]) -> Started:
        self.slots[i].reset_instead()
        return observation, info

    def _reset_in_same_step(self, i: int, observation: Any, info: dict[str, Any]) -> Started:
        self.check_shape(observation)
        # Many worlds write every observation into one array of theirs, and the reset would overwrite the last.
        self._entries.append((self.first + i, {"final_obs": copy.deepcopy(observation), "final_info": info}))
        return self.slots[i].autoreset()

    # ---- for those who restore them ----

    def record(self, on: bool) -> None:
        self.clock.recording = on

    def record_soon(self) -> None:
        for slot in self.slots:
            slot.record_next()

    def rebuild(self, unit: range) -> None:
        self.slots[unit.start].rebuild()

    def tell_next(self, i: int, episode: NextEpisode) -> None:
        self.slots[i].next = episode

    def give_up(self, unit: range, plans: Sequence[SlotPlan], reason: str | None) -> None:
        self.slots[unit.start].give_up(plans[0], reason)

    def turn_to(self, slot: int) -> Place:
        self._move_on(slot - self.first, self._doing)
        return self.place()

    def _refuse(self, observation: Any) -> None:
        """Raise because the world that the group is at observed nothing, or something of another shape."""
        check_observation(self.layout, observation, self.place())

    def _begin(self) -> None:
        self._entries = [] if self._entries else self._entries
        self._origins.clear()

    def _extras(self, span: range | None = None) -> Extras:
        return Extras(infos=pack(self._entries, span), origins=list(self._origins))

    # ---- everything else ----

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], indices: Sequence[int]) -> list[Any]:
        results = []
        for i in indices:
            self._move_on(i, f"calling {name!r}")
            value = self.slots[i].env.get_wrapper_attr(name)
            if callable(value):
                try:
                    value = self.slots[i].guard.run(value, *args, **kwargs)
                finally:
                    self.slots[i].changed()
            results.append(value)
        return results

    def set_attr(self, name: str, i: int, value: Any) -> None:
        self._move_on(i, f"setting {name!r}")
        try:
            self.slots[i].env.set_wrapper_attr(name, value)
        finally:
            self.slots[i].changed()

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        results = []
        for i, slot in enumerate(self.slots):
            self._move_on(i, "running a mapped function")
            try:
                results.append(slot.guard.run(function, native(slot.env)))
            finally:
                slot.changed()
        return results

    def close(self, unit: range) -> None:
        self._move_on(unit.start, "closing")
        self.slots[unit.start].env.close()


def _not_built(_: Any) -> Any:
    raise AssertionError("the world is not built yet")
