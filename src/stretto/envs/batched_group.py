"""BatchedGroup: worlds that are batched already, a `gymnasium.vector.VectorEnv` a block, as a group like any other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from stretto.core import NextEpisode
from stretto.envs.arrays import BlockRows, Rows, in_c_order, write_rows
from stretto.envs.infos import BatchInfos, Infos, entries
from stretto.envs.messages import Built, Extras, Origin, ResetSlot, SlotPlan
from stretto.envs.slot import GroupSettings
from stretto.errors import InvalidOutput, Place, UsageError
from stretto.identity.watched_globals import classes_of
from stretto.outputs import check_observation, check_scalars
from stretto.seeding import PrivateGenerators, SeedTree
from stretto.spaces import Array, Leaf, SpaceLayout, map_space, row_of

__calls_user_code__ = True

_NUMBER, _FLAG = np.dtype(np.float64), np.dtype(np.bool_)


BlockMaker = Callable[[int], gymnasium.vector.VectorEnv[Any, Any, Any]]
"""Makes a vector environment of so many worlds."""


@dataclass(slots=True)
class _Lost:
    """What a block has still to show after its episodes were lost: how they end, and then that others begin."""

    last: list[Any]
    reason: str
    seed: int
    ended: bool = False


class BatchedGroup:
    """Blocks of worlds for the slots from `first` on. All are reset and stepped together, and restored together.

    `position[0]` changes whenever the group moves on; it is how others see which block it is at, and that it moves.
    """

    def __init__(
        self,
        maker: BlockMaker,
        sizes: Sequence[int],
        first: int,
        settings: GroupSettings,
        worker: int,
        position: memoryview[int],
    ) -> None:
        self.first, self._worker, self._position = first, worker, position
        self.count = sum(sizes)
        begins = [sum(sizes[:index]) for index in range(len(sizes))]
        self.everyone = range(self.count)
        self.ended = True  # it does not look
        self.units: Sequence[range] = [range(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
        self.layout: SpaceLayout
        self.action_layout: SpaceLayout
        self._mode, self._doing = settings.autoreset_mode, "building"
        self._strict = settings.checks == "always"
        # Of all observations, if they are one array whose values nobody checks.
        self._usual_shape: tuple[int, ...] | None = None
        self._usual_type = _NUMBER
        self.refuse: Callable[[Any], None] | None = None
        self._blocks = [Block(unit.start, len(unit), first + unit.start, settings, maker) for unit in self.units]
        self._at = self._blocks[0]
        self._lost: dict[Block, _Lost] = {}

    def build(self) -> None:
        for block in self._blocks:
            self._move_on(block, "building")
            block.build()
        head = self._blocks[0].env
        self.layout = SpaceLayout(head.single_observation_space)
        self.action_layout = SpaceLayout(head.single_action_space)
        only = self.layout.only
        if only is not None and not self._strict:
            self._usual_shape, self._usual_type = (self.count, *only.shape), only.dtype

    def describe(self) -> Built:
        env = self._blocks[0].env
        return Built(
            observation_space=env.single_observation_space,
            action_space=env.single_action_space,
            metadata=dict(env.metadata),
            render_mode=env.render_mode,
            spec=env.spec,
            blocks=len(self._blocks),
        )

    def _at_indices(self, indices: Sequence[int]) -> list[Block]:
        return [block for block in self._blocks if block.first in indices]

    def _move_on(self, block: Block, doing: str) -> None:
        self._at, self._doing = block, doing
        self._position[0], self._position[1] = block.first + 1, block.steps + (doing == "stepping")

    def classes(self) -> set[type]:
        return {kind for block in self._blocks for kind in classes_of(block.env)}

    def show_starts(self, starts: memoryview[int]) -> None:
        starts[:] = memoryview(bytes(starts.nbytes)).cast("q")  # steps are counted from the last reset of all

    def place(self) -> Place:
        """Say what the group is at: a block is known by its first slot."""
        step = self._at.steps if self._doing == "stepping" else None
        slot = self.first + self._position[0] - 1
        return Place(self._doing, worker=self._worker, slot=slot, step=step, seed=self._at.seed)

    def turn_to(self, slot: int) -> Place:
        self._move_on(next(b for b in self._blocks if slot - self.first < b.span.stop), self._doing)
        return self.place()

    # ---- resetting and stepping ----

    def reset(self, resets: Sequence[ResetSlot], rows: Rows) -> Extras:
        extras, pieces = Extras(), []
        by_slot = {how.slot: how for how in resets}
        for block in [block for block in self._blocks if block.slot in by_slot]:
            self._move_on(block, "resetting")
            self._lost.pop(block, None)
            observations, infos, chosen = block.reset(by_slot[block.slot])
            if chosen is not None:  # a point to restore these slots from: only this reset knows its seed
                hows = [by_slot[block.slot + k] for k in range(block.count)]
                extras.origins += [Origin(how.slot, how.episode, chosen, None, None, automatic=False) for how in hows]
            nothing = np.zeros(block.count)
            self._check(block, observations, nothing, nothing, nothing)
            if rows.hand_over is None:
                self._write(block, rows, observations, nothing, nothing, nothing)
            else:
                rows.hand_over(self._own(observations), nothing, *np.zeros((2, block.count), _FLAG))
            if infos:
                pieces.append(BatchInfos(block.slot, block.count, infos))
        extras.infos = _joined(pieces)
        return extras

    def step(self, indices: Sequence[int], actions: Any, rows: Rows) -> Extras | None:
        if rows.hand_over is not None:
            *arrays, told = self.step_alone(self._batch(actions))
            rows.hand_over(*arrays)
            return None if told is None else Extras(told)
        batch, pieces = self._batch(actions), []
        for block in self._blocks if indices is self.everyone else self._at_indices(indices):
            self._move_on(block, "stepping")
            part = batch if block.count == len(indices) else self._part(batch, block.span)
            result = block.step(part) if block not in self._lost else self._end_lost(block)
            observations, rewards, terminated, truncated, infos = result
            self._check(block, observations, rewards, terminated, truncated)
            self._write(block, rows, observations, rewards, terminated, truncated)
            if infos:
                pieces.append(BatchInfos(block.slot, block.count, infos))
        return Extras(_joined(pieces)) if pieces else None

    def step_alone(self, actions: Any) -> BlockRows:
        """Step the only block, of which no episode was lost; return what it gave, as arrays that nobody else has.

        For a caller who has it itself. This does by hand what others do: with 1,024 worlds like CartPole each function
        around a step takes 0.5% of it, because the caches are full of the worlds.
        """
        block, self._doing = self._at, "stepping"
        observations, rewards, terminated, truncated, infos = block.step(actions)
        told = BatchInfos(block.slot, block.count, infos) if infos else None
        try:
            flags = terminated.shape == truncated.shape == block.shape
            usual = flags and rewards.shape == block.shape and observations.shape == self._usual_shape
        except AttributeError:  # lists, or several parts
            usual = False
        if not usual:
            self._check(block, observations, rewards, terminated, truncated)
        # Each takes the place of what it is a copy of, whose memory is in the caches and can be used for the next.
        observations = in_c_order(observations, self._usual_type) if usual else self._own(observations)
        rewards = np.array(rewards, _NUMBER)
        terminated = np.array(terminated, _FLAG)
        truncated = np.array(truncated, _FLAG)
        return observations, rewards, terminated, truncated, told

    def _batch(self, actions: Any) -> Any:
        """Return actions as the vector environments take them: arrays are already so, rows are put together."""
        if isinstance(actions, np.ndarray):
            return actions
        if self.action_layout.loose:
            return tuple(actions)
        return _stacked(self.action_layout.space, actions)

    def _part(self, batch: Any, span: slice) -> Any:
        """Return some rows of a batch of actions."""
        layout = self.action_layout
        return batch[span] if layout.loose else map_space(lambda _, part: part[span], layout.space, batch)

    def _check(self, block: Block, observations: Any, rewards: Any, terminated: Any, truncated: Any) -> None:
        """Raise unless there is a row for each world of the block; with strict checks, because of values too."""
        layout, count = self.layout, block.count
        if layout.only is not None:
            if observations.shape != (count, *layout.only.shape):
                self._refuse_shape(layout.only, count, observations)
        else:
            for leaf in layout.fixed:
                if np.shape(leaf.get(observations)) != (count, *leaf.shape):
                    self._refuse_shape(leaf, count, leaf.get(observations))
        for name, values in (("rewards", rewards), ("terminated", terminated), ("truncated", truncated)):
            if np.shape(values) != block.shape:
                self._refuse(f"{name} must have shape {block.shape}, one for each world, got shape {np.shape(values)}")
        if self._strict:
            self._check_values(observations, rewards)

    def _write(
        self, block: Block, rows: Rows, observations: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> None:
        layout = self.layout
        if layout.loose:
            for i in range(block.count):
                rows.target[block.first + i] = row_of(layout.space, observations, i)
        elif layout.only is not None:
            write_rows(cast(Array, rows.target)[block.span], observations)
        else:
            rows.target[block.span] = observations
        numbers = zip((rows.rewards, rows.terminated, rows.truncated), (rewards, terminated, truncated), strict=True)
        for view, values in numbers:
            np.asarray(view)[block.span] = values

    def _own(self, observations: Any) -> Any:
        """Return observations that nobody else has.

        In C order wherever a block runs: the last bits of what is computed from an array may depend on its layout.
        """
        layout = self.layout
        if layout.only is not None:
            return in_c_order(observations, layout.only.dtype)
        return layout.batch([np.array(leaf.get(observations), leaf.dtype, order="C") for leaf in layout.fixed], ())

    def _refuse_shape(self, leaf: Leaf, count: int, part: Any) -> None:
        self._refuse(
            f"observations{leaf.name} must have shape {(count, *leaf.shape)}, a row for each world, got shape "
            f"{np.shape(part)}"
        )

    def _check_values(self, observations: Any, rewards: Any) -> None:
        """Raise because of values that the spaces do not contain, or of a reward that is no number, with their slot."""
        for i, reward in enumerate(rewards):
            self._position[0] = self._at.first + i + 1
            check_observation(self.layout, row_of(self.layout.space, observations, i), self.place(), strict=True)
            check_scalars(reward, False, False, self.place(), strict=True)
        self._position[0] = self._at.first + 1

    def _refuse(self, what: str) -> None:
        raise InvalidOutput(f"{what} ({self.place()})", self.place())

    # ---- for those who restore them ----

    def record(self, on: bool) -> None:
        """Only resets are points to restore from, and replayed ones are not told."""

    def record_soon(self) -> None:
        """Only resets are points to restore from."""

    def rebuild(self, unit: range) -> None:
        for block in self._at_indices(unit):
            block.env.close()
            block.build()

    def give_up(self, unit: range, plans: Sequence[SlotPlan], reason: str | None) -> None:
        last = [plan.expected[0] for plan in plans if plan.expected is not None]
        for block in self._at_indices(unit):
            self._lost[block] = _Lost(last, reason or "", plans[0].lost_seed, ended=reason is None)

    def _end_lost(self, block: Block) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step a block whose episodes were lost: they end, all at once, and then others begin as in any other mode."""
        lost, count = self._lost[block], block.count
        never, zeros = np.zeros(count, bool), np.zeros(count)
        if lost.ended:
            del self._lost[block]
            observations, infos = self._begin_after(block, lost)
            return observations, zeros, never, never, infos
        last = _stacked(self.layout.space, lost.last)
        crash = np.array([lost.reason] * count, object)
        infos = {"crash": crash, "_crash": ~never}
        lost.ended = True
        if self._mode is AutoresetMode.SAME_STEP:
            del self._lost[block]
            final = np.empty(count, object)
            final[:] = lost.last
            fresh, begun = self._begin_after(block, lost)
            infos = {"final_obs": final, "_final_obs": ~never, "final_info": infos, "_final_info": ~never, **begun}
            return fresh, zeros, never, ~never, infos
        return last, zeros, never, ~never, infos

    def _begin_after(self, block: Block, lost: _Lost) -> tuple[Any, dict[str, Any]]:
        observations, infos, _ = block.reset(ResetSlot(block.slot, lost.seed, None))
        return observations, infos

    # ---- everything else ----

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], indices: Sequence[int]) -> list[Any]:
        results: list[Any] = []
        for block in self._at_indices(indices):
            self._move_on(block, f"calling {name!r}")
            value = getattr(block.env, name)
            if callable(value):
                value = block.guard.run(value, *args, **kwargs)
            by_world = isinstance(value, (list, tuple, np.ndarray)) and len(value) == block.count
            results += list(value) if by_world else [value] * block.count
        return results

    def set_attr(self, name: str, i: int, value: Any) -> None:
        """Set an attribute of the vector environment that has world `i`."""
        block = next(block for block in self._blocks if i < block.span.stop)
        self._move_on(block, f"setting {name!r}")
        block.guard.run(setattr, block.env, name, value)

    def tell_next(self, i: int, episode: NextEpisode) -> None:
        """Refuse: a vector environment begins its episodes as it likes."""
        raise AssertionError("worlds that are batched cannot be told what to play next")

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """Refuse: there is no single world to run a function beside."""
        raise AssertionError("worlds that are batched have no single worlds to run a function beside")

    def close(self, unit: range) -> None:
        for block in self._at_indices(unit):
            self._move_on(block, "closing")
            block.env.close()


def _stacked(space: spaces.Space[Any], rows: Sequence[Any]) -> Any:
    empty: Any = create_empty_array(space, len(rows))
    return concatenate(space, rows, empty)


def _joined(pieces: Sequence[Infos]) -> Infos:
    """Return the infos of all blocks as one."""
    present = [piece for piece in pieces if isinstance(piece, BatchInfos)]
    if len(present) <= 1:
        return present[0] if present else None
    return [entry for piece in present for entry in entries(piece)]


class Block:
    """Some worlds of the group, from index `first` on, that one vector environment steps."""

    def __init__(self, first: int, count: int, slot: int, settings: GroupSettings, maker: BlockMaker) -> None:
        self.first, self.count, self.slot = first, count, slot
        self.span, self.shape = slice(first, first + count), (count,)
        self.seed: int | None = None
        self.steps = 0
        self._settings, self._maker = settings, maker
        self.guard: PrivateGenerators
        self._seeded = False
        self.env: gymnasium.vector.VectorEnv[Any, Any, Any]

    def build(self) -> None:
        """Make the vector environment; what it draws from global generators comes from streams of its own."""
        self._seeded, self.guard = False, self._settings.private_generators(self.slot)
        self.env = self.guard.run_repeatable(self._maker, self.count, undo=lambda first: first.close())
        own, wanted = self.env.metadata.get("autoreset_mode"), self._settings.autoreset_mode
        if own is not None and AutoresetMode(own) is not wanted:
            raise UsageError(
                f"a vectorized environment resets its worlds as it was made to, in mode {AutoresetMode(own).value!r}, got "
                f"autoreset_mode={wanted.value!r}; pass autoreset_mode={AutoresetMode(own).value!r}"
            )
        env: Any = self.env
        checked = isinstance(env.single_action_space, spaces.Discrete | spaces.MultiDiscrete)
        if checked and env is env.unwrapped and "action_space" in vars(env):
            # Every action was checked before it came here: CartPole's own assertion would take a tenth of its step.
            env.action_space = copy.deepcopy(env.action_space)
            env.action_space.contains = lambda _: True

    def reset(self, how: ResetSlot) -> tuple[Any, dict[str, Any], int | None]:
        """Reset all worlds as the first is told; return the seed beside what they gave, if nobody has given one so far."""
        chosen = None
        seed, self.steps = how.seed, 0
        if seed is None and not self._seeded:
            seed = chosen = SeedTree(how.entropy).child("block", self.slot).seed()
        if seed is not None:
            self.seed, self._seeded = seed, True
            self.guard.reseed(SeedTree(seed).child("global"))
        observations, infos = self.guard.run(self.env.reset, seed=seed, options=how.options)
        return observations, infos, chosen

    def step(self, actions: Any) -> Any:
        self.steps += 1
        return self.guard.run(self.env.step, actions) if self.guard.needed else self.env.step(actions)
