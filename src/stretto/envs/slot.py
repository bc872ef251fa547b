"""Slot: one world, and what its episodes need: seeds, tasks, private generators, checks, points to restore it from."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from stretto.adapters.blocks import AgentBlocks
from stretto.adapters.gymnasium import (
    Direct,
    StepFunction,
    around,
    direct,
    ensure_generator,
    generator_state,
    set_generator,
)
from stretto.core import NextEpisode
from stretto.envs.messages import Origin, ResetSlot, SlotPlan
from stretto.errors import InvalidOutput, Place, ResetNeeded
from stretto.outputs import FIRST_STEPS, Look, check_observation, check_scalars
from stretto.seeding import GLOBAL_GENERATORS, PrivateGenerators, SeedTree, episode_seed
from stretto.spaces import SpaceLayout, any_value, map_space

RECORD_EVERY, RECORD_SECONDS, RECORD_SHARE = 2_000, 1.0, 50
"""When the next episode is a point to restore the slot from: after so many steps or seconds, whichever come first.

Recording one costs as much as ten steps of CartPole; what is not recorded has to be replayed, and steps may be slow.
Where there are more than `RECORD_SHARE` slots in a worker, the seconds are in proportion: no more than one in a
hundred goes into recording.
"""

PROBATION_CALLS = 16
"""How many calls of a world are watched for draws from global generators."""

_LOOK_AGAIN = FIRST_STEPS - 2
"""How many checks are left when Gymnasium's own wrappers have checked all that they check."""

NEVER = 1 << 62

_AS_EVER = NextEpisode()

Maker = Callable[[], gymnasium.Env[Any, Any]]
Started = tuple[Any, dict[str, Any]]
"""What a reset returns: an observation and an info."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What all slots of a vector environment have in common; the first of them may be called `first_slot`."""

    autoreset_mode: AutoresetMode
    episode_seeds: bool
    global_rng: str
    checks: str
    first_slot: int = 0

    def private_generators(self, number: int) -> PrivateGenerators:
        """Return those of the world in slot `number`, or of the block that begins there; some are never needed."""
        tree = SeedTree(0).child("construct", self.first_slot + number)
        probation = PROBATION_CALLS if self.global_rng == "auto" else 0
        return PrivateGenerators(tree, probation, GLOBAL_GENERATORS if self.global_rng == "private" else ())


class Clock:
    """Counts the steps of a group; `alarm` is when the time of an episode is over next, or earlier, never later.

    While it is `recording`, points to restore slots from are kept. So many slots are `watched` for draws from global
    generators. `starts` are the steps in which the episode of each
    world began; a caller that shares memory sees them.
    """

    __slots__ = ("alarm", "now", "recording", "starts", "watched")

    def __init__(self, count: int) -> None:
        self.now = 0
        self.starts: memoryview[int] = memoryview(array("q", bytes(8 * count)))
        self.alarm = NEVER
        self.recording = True
        self.watched = 0


class Slot:
    """World number `number` of a vector environment.

    How it is stepped just now stands in `steps[index]`: the world's own `step`, with no more around it than is needed.
    `place` says what the group is at.
    """

    def __init__(
        self,
        number: int,
        maker: Maker,
        settings: GroupSettings,
        steps: list[StepFunction],
        index: int,
        clock: Clock,
        place: Callable[[], Place],
    ) -> None:
        self.number, self._maker, self._settings = number, maker, settings
        self._steps, self._index, self._clock, self._place = steps, index, clock, place
        # What each of the first steps looks at stands together, and so it does in memory.
        self.guard: PrivateGenerators
        self._inner: StepFunction
        self._is_watched = False
        self.unchecked = 0 if settings.checks == "off" else FIRST_STEPS
        self._strict, self._for_now = settings.checks == "always", settings.checks == "first"
        self.env: gymnasium.Env[Any, Any]
        self.layout: SpaceLayout | None = None
        self.looks_right: Look
        self.next: NextEpisode | None = None
        self.episode = -1
        self.seed: int | None = None
        self.ends = NEVER  # the step of the group in which a limit of time cuts the episode
        self.recorded = 0
        self._recorded_at = 0.0
        self._record_seconds = RECORD_SECONDS * max(1.0, len(steps) / RECORD_SHARE)
        self.resetting = False
        self.origins: list[Origin] = []
        self._next_seed: int | None = None
        self._ever_reset = False
        self._direct: Direct
        self._ready: StepFunction | None = None  # the world's own step, once nothing is left to find out about it
        self._waits = False  # for a reset: its next step is none of the world's
        refused = settings.autoreset_mode is AutoresetMode.DISABLED
        self._instead: StepFunction = self._refuse if refused else self._begin_episode

    # ---- building ----

    def build(self) -> None:
        """Make the world; what it draws from global generators meanwhile comes from streams of its own."""
        self.guard = self._settings.private_generators(self.number)
        self.env = self.guard.run_repeatable(self._maker, undo=lambda first: first.close())
        self._forget()
        self.install()

    def rebuild(self) -> None:
        """Replace the world by a new one, as if nothing had happened to it yet."""
        self.env.close()
        self.episode, self._ever_reset, self._next_seed = -1, False, None
        self.build()

    def install(self) -> None:
        """Let the next step be one of the world."""
        step = self._ready
        if step is None:
            own = self._look().step
            step = self._around(own)
            if step is own and self._direct.settled:
                self._ready = own
        self._steps[self._index] = step
        self._waits = False

    def _look(self) -> Direct:
        """Look which way to the world is the shortest now, unless that is settled."""
        if not self._direct.settled:
            self._direct = direct(self.env)
            limit = self._direct.limit
            self._watch_time(NEVER if limit is None else limit.left)
        return self._direct

    def _around(self, step: StepFunction) -> StepFunction:
        """Put around a step what it needs for now."""
        guard = self.guard
        self._watch(guard.on_probation)
        if guard.on_probation or self.unchecked > 0:
            self._inner = step
            return self._looked_at
        return partial(guard.run, step) if guard.needed else step

    def changed(self) -> None:
        """Take note that somebody may have changed the world, or what is wrapped around it."""
        self._forget()
        if not self._waits:
            self.install()

    def _forget(self) -> None:
        self._direct, self._ready = around(self.env), None

    # ---- limits of time: the clock of the group counts for the wrapper, which is right whenever somebody looks ----

    def _watch_time(self, left: int) -> None:
        self.ends = ends = self._clock.now + left
        self._clock.alarm = min(self._clock.alarm, ends)

    def count(self) -> None:
        """Tell the wrapper how many steps the episode has had."""
        if self.ends < NEVER and self._direct.limit is not None:
            self._direct.limit.left = self.ends - self._clock.now

    def cut(self) -> None:
        """Let the next step be the last one of the episode."""
        step = self._direct.step

        def last(action: Any) -> Any:
            observation, reward, terminated, _, info = step(action)
            return observation, reward, terminated, True, info

        self._steps[self._index] = self._around(last)

    def _watch(self, on: bool) -> None:
        """Take note of whether the steps of this slot are watched for draws from global generators."""
        self._clock.watched += on - self._is_watched
        self._is_watched = on

    def _looked_at(self, action: Any) -> Any:
        """Step the world, and look at what it draws and gives, for as long as each is to be looked at.

        This is no function around a function: the first steps of thousands of worlds pass through here, and every object on
        their way is fetched from memory, which takes longer than all that is done with it.
        """
        guard = self.guard
        result: Any = guard.call(self._inner, action) if guard.needed else self._inner(action)
        if self.unchecked > 0:
            if self._strict or not self.looks_right(result):
                self._check(result)
            if self._for_now:
                self.unchecked = left = self.unchecked - 1
                if left == _LOOK_AGAIN and not self._direct.settled:
                    self.install()
        if guard.left <= 0 and (self._is_watched or self.unchecked == 0):
            self.install()
        return result

    def _check(self, result: Any) -> None:
        """Raise unless what a step gave is as it should be."""
        if not isinstance(result, tuple) or len(result) != 5:
            raise InvalidOutput(f"step must return five values, got {result!r} ({self._place()})", self._place())
        observation, reward, terminated, truncated, _ = result
        self._check_observation(observation)
        check_scalars(reward, terminated, truncated, self._place(), strict=self._strict)

    def _check_observation(self, observation: Any) -> None:
        assert self.layout is not None
        strict = self._strict
        if strict and isinstance(self.env, AgentBlocks):
            self.env.check_values()
            strict = False  # zeros stand for agents that are not there
        check_observation(self.layout, observation, self._place(), strict=strict)

    # ---- episodes ----

    def reset(self, how: ResetSlot) -> Started:
        """Begin an episode as told, and remember what later ones need."""
        self.next = how.next
        seed = how.seed
        if how.slot_seed is not None:
            self.seed = how.slot_seed
            self._next_seed = None
        self.episode = how.episode
        if how.slot_seed is None and not how.restoring:
            seed = self._seed_of_episode()
        if how.generator is not None:
            set_generator(self.env, how.generator)
        elif seed is None and not self._ever_reset:
            ensure_generator(self.env)
        if how.globals is not None:
            self.guard.set_state(how.globals)
            self._ready = None
        elif seed is None and not self._ever_reset:
            self.guard.reseed(SeedTree(how.entropy).child("global", self.number))
        if self._clock.recording and (how.slot_seed is None or seed is None):
            self._record(seed, None, automatic=False)
        return self._reset_world(seed, how.options)

    def autoreset(self) -> Started:
        """Begin the next episode."""
        self.episode += 1
        clock, way, ready = self._clock, self._direct, self._ready
        due = clock.recording and (
            clock.now - self.recorded >= RECORD_EVERY or time.monotonic() - self._recorded_at > self._record_seconds
        )
        if due or ready is None or self.next is not None or self._next_seed is not None or self._settings.episode_seeds:
            coming, self.next = self.next or _AS_EVER, None
            if coming.idle:
                return self._idle()
            seed = self._seed_of_episode() if coming.seed is None else coming.seed
            options = None if coming.options is None else dict(coming.options)
            if due:
                self._record(seed, options, automatic=True)
            return self._reset_world(seed, options)
        # The common case, without anything that it does not need: CartPole is reset every 20 steps.
        self.resetting = True
        observation, info = way.reset(**way.keywords)
        self.resetting = False
        clock.starts[self._index] = clock.now
        if way.limit is not None:
            self._watch_time(way.limit.most)
        self._steps[self._index] = ready
        self._waits = False
        return observation, info

    def reset_instead(self) -> None:
        """Let the next step be a reset, or refuse it where resets are the caller's business."""
        self.count()
        self._steps[self._index] = self._instead
        self._waits, self.ends = True, NEVER

    def _idle(self) -> Started:
        """Let steps do nothing until the slot is reset."""
        nothing = map_space(any_value, self.env.observation_space)
        self._steps[self._index] = lambda _: (nothing, 0.0, False, False, {})
        self._waits, self.ends = True, NEVER
        return nothing, {}

    def _begin_episode(self, _: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, info = self.autoreset()
        return observation, 0.0, False, False, info

    def _refuse(self, _: Any) -> Any:
        raise ResetNeeded(
            f"with autoreset disabled, a slot whose episode is over must be reset before it is stepped, and "
            f"slot {self.number} was not; pass options={{'reset_mask': ...}} to reset()"
        )

    def give_up(self, plan: SlotPlan, reason: str | None) -> None:
        """Go on after an episode that cannot be restored; it is truncated by the next step, and `reason` says why.

        Without a reason the episode was over anyway, and only the next one has to begin.
        """
        self.next, self.episode, self.seed, self._ever_reset = plan.next, plan.lost_episode, plan.slot_seed, True
        self._next_seed = None if self._settings.episode_seeds and self.seed is not None else plan.lost_seed
        self.record_next()
        self.reset_instead()
        if reason is not None:
            assert plan.expected is not None
            last = plan.expected[0], 0.0, False, True, {"crash": reason}

            def lost(_: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
                self.install()
                return last

            self._steps[self._index] = lost

    def record_next(self) -> None:
        """Let the next episode be a point to restore the slot from."""
        self.recorded = self._clock.now - RECORD_EVERY

    def _seed_of_episode(self) -> int | None:
        if self._next_seed is not None:
            seed, self._next_seed = self._next_seed, None
            return seed
        if self._settings.episode_seeds and self.seed is not None:
            return episode_seed(self.seed, self.episode)
        return None

    def _record(self, seed: int | None, options: dict[str, Any] | None, automatic: bool) -> None:
        """Remember this point, if a fresh world can be brought to it."""
        generator = None if seed is not None else generator_state(self.env)
        if seed is None and generator is None:
            return
        private = self.guard.state() if self.guard.needed else None
        self.recorded, self._recorded_at = self._clock.now, time.monotonic()
        self.origins.append(Origin(self.number, self.episode, seed, generator, private, automatic, options))

    def _reset_world(self, seed: int | None, options: dict[str, Any] | None) -> Started:
        self.resetting = True
        keywords: dict[str, Any] = {} if seed is None else {"seed": seed}
        if seed is not None and self.guard.needed:
            self.guard.reseed(SeedTree(seed).child("global"))
        if options is not None:
            keywords["options"] = options
        if self.guard.needed:
            result: Any = reset_privately(self.env, self.guard, **keywords)
        else:
            result = self.env.reset(**keywords)
        if self._direct.limit is not None:
            self._watch_time(self._direct.limit.left)
        self._clock.starts[self._index] = self._clock.now
        self._ever_reset = True
        self.install()
        if self.unchecked > 0:
            if not isinstance(result, tuple) or len(result) != 2:
                raise InvalidOutput(f"reset must return two values, got {result!r} ({self._place()})", self._place())
            self._check_observation(result[0])
        self.resetting = False
        observation, info = result
        return observation, info


def reset_privately(env: gymnasium.Env[Any, Any], guard: PrivateGenerators, **keywords: Any) -> Any:
    """Reset a world with its private generators in place; where that is done twice, both begin in the same state."""
    state = None if "seed" in keywords else generator_state(env)

    def put_back(_: Any) -> None:
        if state is not None:
            set_generator(env, state)

    return guard.run_repeatable(env.reset, undo=put_back, **keywords)
