"""BatchedGroup: worlds that are batched already, a `gymnasium.vector.VectorEnv` a block, as a group like any other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from stretto.core import NextEpisode
from stretto.envs.arrays import Rows, in_c_order, write_rows
from stretto.envs.checks import check_observation, check_scalars
from stretto.envs.infos import BatchInfos, Infos, entries
from stretto.envs.messages import Built, Extras, Origin, ResetSlot, SlotPlan
from stretto.envs.slot import GroupSettings
from stretto.envs.watched_globals import classes_of
from stretto.errors import InvalidOutput, Place, UsageError
from stretto.seeding import PrivateGenerators, SeedTree
from stretto.spaces import Array, Leaf, SpaceLayout, map_space, row_of

__calls_user_code__ = True

BLOCK_ROWS, MOST_BLOCKS = 4_096, 8
"""How many worlds a block has at least where there are several, and how many blocks there are at most.

With fewer rows handing a block to another process takes longer than it saves (CartPole: 140 µs for 4,096 rows); with
more blocks, whoever has one core loses more to numpy's cost of a call than it may.
"""

BlockMaker = Callable[[int], gymnasium.vector.VectorEnv[Any, Any, Any]]
"""Makes a vector environment of so many worlds."""


def block_sizes(count: int, blocks: int | None = None) -> list[int]:
    """Split `count` worlds into blocks: by their number alone, because random streams are a block's own."""
    blocks = blocks or min(MOST_BLOCKS, max(1, count // BLOCK_ROWS))
    least, more = divmod(count, blocks)
    return [least + (index < more) for index in range(blocks)]


@dataclass(frozen=True, slots=True)
class VectorMaker:
    """Makes the vectorized form of a registered environment, or calls a function `(num_envs=..., **kwargs)`."""

    source: EnvSpec | Callable[..., Any]
    kwargs: dict[str, Any]
    wrappers: Sequence[Callable[[Any], Any]] = ()

    def __call__(self, count: int) -> Any:
        if isinstance(self.source, EnvSpec):
            mode = VectorizeMode.VECTOR_ENTRY_POINT
            env: Any = gymnasium.make_vec(copy.deepcopy(self.source), count, vectorization_mode=mode, **self.kwargs)
        else:
            env = self.source(num_envs=count, **self.kwargs)
        for wrap in self.wrappers:
            env = wrap(env)
        if not isinstance(env, gymnasium.vector.VectorEnv):
            raise UsageError(f"with vectorized=True a factory must return a gymnasium.vector.VectorEnv, got {env!r}")
        if env.num_envs != count:
            raise UsageError(
                f"a vectorized environment must have the {count} worlds it was asked for, got {env.num_envs}"
            )
        return env


class _Block:
    """Some worlds of the group, from index `first` on, that one vector environment steps."""

    def __init__(self, first: int, count: int, slot: int, settings: GroupSettings, maker: BlockMaker) -> None:
        self.first, self.count, self.slot = first, count, slot
        self.span = slice(first, first + count)
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

        base: Any = self.env.unwrapped
        if isinstance(base.single_action_space, spaces.Discrete | spaces.MultiDiscrete) and "action_space" in vars(
            base
        ):
            # Every action was checked before it came here: CartPole's own assertion would take a tenth of its step.
            base.action_space = copy.deepcopy(base.action_space)
            base.action_space.contains = lambda _: True

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
        return self.guard.run(self.env.step, actions)


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
        self.units: Sequence[range] = [range(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
        self.layout: SpaceLayout
        self.action_layout: SpaceLayout
        self._mode, self._doing = settings.autoreset_mode, "building"
        self._strict = settings.checks == "always"
        self.refuse: Callable[[Any], None] | None = None
        self._blocks = [_Block(unit.start, len(unit), first + unit.start, settings, maker) for unit in self.units]
        self._at = self._blocks[0]
        self._lost: dict[_Block, _Lost] = {}

    def build(self) -> None:
        for block in self._blocks:
            self._move_on(block, "building")
            block.build()
        head = self._blocks[0].env
        self.layout = SpaceLayout(head.single_observation_space)
        self.action_layout = SpaceLayout(head.single_action_space)

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

    def _at_indices(self, indices: Sequence[int]) -> list[_Block]:
        return [block for block in self._blocks if block.first in indices]

    def _move_on(self, block: _Block, doing: str) -> None:
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
            self._write(block, rows, observations, nothing, nothing, nothing)
            if infos:
                pieces.append(BatchInfos(block.slot, block.count, infos))
        extras.infos = _joined(pieces)
        return extras

    def step(self, indices: Sequence[int], actions: Any, rows: Rows) -> Extras | None:
        batch, pieces = self._batch(actions), []
        for block in self._blocks if indices is self.everyone else self._at_indices(indices):
            self._move_on(block, "stepping")
            part = batch if block.count == len(indices) else self._part(batch, block.span)
            result = block.step(part) if block not in self._lost else self._end_lost(block)
            observations, rewards, terminated, truncated, infos = result
            self._write(block, rows, observations, rewards, terminated, truncated)
            if infos:
                pieces.append(BatchInfos(block.slot, block.count, infos))
        return Extras(_joined(pieces)) if pieces else None

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

    def _write(
        self, block: _Block, rows: Rows, observations: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> None:
        layout, count = self.layout, block.count
        if layout.only is not None:
            if observations.shape != (count, *layout.only.shape):
                self._refuse_shape(layout.only, count, observations)
        else:
            for leaf in layout.fixed:
                if np.shape(leaf.get(observations)) != (count, *leaf.shape):
                    self._refuse_shape(leaf, count, leaf.get(observations))
        for name, values in (("rewards", rewards), ("terminated", terminated), ("truncated", truncated)):
            if np.shape(values) != (count,):
                self._refuse(f"{name} must have shape {(count,)}, one for each world, got shape {np.shape(values)}")
        if self._strict:
            self._check_values(observations, rewards)
        if rows.hand_over is not None and count == self.count:
            rows.hand_over(*self._own(observations, rewards, terminated, truncated))
            return
        if layout.loose:
            for i in range(count):
                rows.target[block.first + i] = row_of(layout.space, observations, i)
        elif layout.only is not None:
            write_rows(cast(Array, rows.target)[block.span], observations)
        else:
            rows.target[block.span] = observations
        numbers = zip((rows.rewards, rows.terminated, rows.truncated), (rewards, terminated, truncated), strict=True)
        for view, values in numbers:
            np.asarray(view)[block.span] = values

    def _own(self, observations: Any, rewards: Any, terminated: Any, truncated: Any) -> tuple[Any, Any, Any, Any]:
        """Return these as arrays of the right types that nobody else has."""
        only, flag = self.layout.only, np.bool_
        if only is not None:
            # In C order wherever a block runs: the last bits of what is computed from an array may depend on its layout.
            observations = in_c_order(observations, only.dtype)
        else:
            arrays = [np.array(leaf.get(observations), leaf.dtype, order="C") for leaf in self.layout.fixed]
            observations = self.layout.batch(arrays, ())
        return observations, np.array(rewards, np.float64), np.array(terminated, flag), np.array(truncated, flag)

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

    def _refuse(self, what: str) -> None:
        raise InvalidOutput(f"{what} ({self.place()})", self.place())

    # ---- for those who restore them ----

    def record(self, on: bool) -> None:
        """Only resets are points to restore from, and replayed ones are not told."""

    def rebuild(self, unit: range) -> None:
        for block in self._at_indices(unit):
            block.env.close()
            block.build()

    def give_up(self, unit: range, plans: Sequence[SlotPlan], reason: str | None) -> None:
        last = [plan.expected[0] for plan in plans if plan.expected is not None]
        for block in self._at_indices(unit):
            self._lost[block] = _Lost(last, reason or "", plans[0].lost_seed, ended=reason is None)

    def _end_lost(self, block: _Block) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
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

    def _begin_after(self, block: _Block, lost: _Lost) -> tuple[Any, dict[str, Any]]:
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
