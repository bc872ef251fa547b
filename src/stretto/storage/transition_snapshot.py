"""Drawing transitions from a range of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.spaces import Array
from stretto.storage.decisions import TransitionRange
from stretto.storage.memory import RingMemory
from stretto.storage.snapshot import Snapshot, Streams, checked_streams

if TYPE_CHECKING:
    from stretto.storage.priorities import Priorities


@dataclass(slots=True)
class TransitionBatch:
    """Transitions by agent: every array is `(agents, count, ...)`, copied out of the buffer.

    The value to learn is `rewards + discounts * value(next_observations)`. `discounts` has what is left after as many steps
    as `rewards` add up, and is 0 where the episode terminated; where it was only truncated, it is not. `numbers` tell
    the learner's `Priorities` which ones they were. Agents that have no transition yet have zeros, and a false `mask`.
    """

    observations: Any
    actions: Any
    rewards: Array
    discounts: Array
    next_observations: Any
    extras: dict[str, Array]
    numbers: Array
    mask: Array
    weights: Array | None = None


class TransitionSnapshot(Snapshot):
    """Shows a range of a `TransitionBuffer` until it is released."""

    def __init__(self, memory: RingMemory, taken: TransitionRange) -> None:
        super().__init__(memory, taken.hold)
        self.range = taken
        self._stack = taken.stack
        layout = memory.layout
        block, self._rows = layout.block, layout.rows
        self._agents = np.arange(len(block.agents))[:, None]
        self._stride = block.lanes * len(block.agents)
        """From an agent's value to that of the next row, in arrays that are flat."""

    def sample(self, streams: Streams, count: int, *, n_steps: int = 1, discount: float = 0.99) -> TransitionBatch:
        """Draw `count` transitions for each agent from its own stream, each as likely as any other.

        Rewards of up to `n_steps` decisions are added up, fewer at the end of an episode or of the range.
        """
        return self.transitions(self._draw(streams, count), n_steps=n_steps, discount=discount)

    def sample_prioritized(
        self,
        streams: Streams,
        count: int,
        priorities: Priorities,
        *,
        correction: float,
        n_steps: int = 1,
        discount: float = 0.99,
    ) -> TransitionBatch:
        """Draw `count` transitions for each agent from its own stream, each as likely as its priority.

        `correction` (0 to 1, often called beta) is how much of that the batch's `weights` take back.
        """
        priorities.follow(self.range)
        numbers, weights = priorities.draw(checked_streams(streams, self._memory.layout.block), count, correction)
        batch = self.transitions(numbers, n_steps=n_steps, discount=discount)
        batch.weights = weights
        return batch

    def _draw(self, streams: Streams, count: int) -> Array:
        numbers = np.full((len(self._agents), count), -1, np.int64)
        taken = self.range
        counts = taken.counts
        for agent, stream in enumerate(checked_streams(streams, self._memory.layout.block)):
            if not counts[agent]:
                continue
            drawn = stream.integers(taken.first[agent], taken.first[agent] + counts[agent], count)
            if left_out := taken.unfinished[agent]:
                # The number that a drawn one has if those left out are counted as well.
                drawn += np.searchsorted(np.array(left_out) - np.arange(len(left_out)), drawn, "right")
            numbers[agent] = drawn
        return numbers

    def transitions(self, numbers: Array, *, n_steps: int = 1, discount: float = 0.99) -> TransitionBatch:
        """Return the transitions with these numbers, `(agents, count)`; negative ones stand for none."""
        flat, block = self._memory.flat, self._memory.layout.block
        here = self._places(numbers)
        last, hop, rewards, left = self._follow(here, n_steps, discount)
        discounts = (left * discount * ~flat["terminated"][last]).astype(np.float32)
        following = last + hop * self._stride
        observations, next_observations = [], []
        for column in block.observation_columns:
            seen, seen_next = self._seen(column.name, here, last, following)
            observations.append(seen)
            next_observations.append(seen_next)
        actions = [flat[column.name].take(here, axis=0) for column in block.action_columns]
        extras = {name: flat[f"extra {name}"].take(here, axis=0) for name in block.extras}
        mask = numbers[:, 0] >= 0
        if not mask.all():
            for array in (*observations, *next_observations, *actions, *extras.values(), rewards, discounts):
                array[~mask] = 0
        return TransitionBatch(
            block.observations.batch(observations, ()),
            block.actions.batch(actions, ()),
            rewards,
            discounts,
            block.observations.batch(next_observations, ()),
            extras,
            numbers,
            mask,
        )

    def _places(self, numbers: Array) -> Array:
        """Return where in flat arrays the decisions with these numbers lie."""
        size = self._rows * self._memory.layout.block.lanes
        place: Array = self._memory.tables["decisions"].reshape(-1).take(numbers % size + self._agents * size)
        return place.astype(np.int64) * len(self._agents) + self._agents

    def _follow(self, here: Array, n_steps: int, discount: float) -> tuple[Array, Array, Array, Any]:
        """Return the last of `n_steps` decisions, its hop, the rewards on the way, and what they leave of 1."""
        flat = self._memory.flat
        last, hop, rewards = here, flat["hop"].take(here), flat["reward"].take(here)
        if n_steps == 1:
            return last, hop, rewards, 1.0
        ended, size = flat["ended"].take(here), self._rows * self._stride
        total, left = rewards.astype(np.float64), np.ones(here.shape)
        to_end = (self.range.end - 1 - here // self._stride) % self._rows + 1
        for _ in range(n_steps - 1):
            then = (last + hop * self._stride) % size
            then_ended, then_hop, then_to_end = flat["ended"].take(then), flat["hop"].take(then), to_end - hop
            # What came of a later decision is known if it came within the range. The last observation that follows an end
            # may be the one after the range.
            goes_on = ~ended & (then_hop > 0) & (then_to_end > then_hop - then_ended)
            left *= np.where(goes_on, discount, 1.0)
            total += np.where(goes_on, left * flat["reward"].take(then), 0.0)
            last, ended = np.where(goes_on, then, last), np.where(goes_on, then_ended, ended)
            to_end, hop = np.where(goes_on, then_to_end, to_end), np.where(goes_on, then_hop, hop)
        return last, hop, total.astype(np.float32), left

    def _seen(self, name: str, here: Array, last: Array, following: Array) -> tuple[Array, Array]:
        """Return a column of what was observed, and of what was observed after `last`."""
        values = self._memory.flat[name]
        if self._stack == 1:
            return values.take(here, axis=0), values.take(following, axis=0, mode="wrap")
        if here is last:  # one step: the two stacks have all frames but one in common, and those are copied once
            frames = values.take(np.concatenate([self._frames(here), following[..., None]], -1), axis=0, mode="wrap")
            return frames[:, :, :-1], frames[:, :, 1:]
        later = np.concatenate([self._frames(last)[..., 1:], following[..., None]], -1)
        return values.take(self._frames(here), axis=0, mode="wrap"), values.take(later, axis=0, mode="wrap")

    def _frames(self, places: Array) -> Array:
        """Return where the frames of a stack lie; the first of an episode stands for those before it."""
        frames, back = [places], self._memory.flat["back"]
        for _ in range(self._stack - 1):
            frames.append(frames[-1] - back.take(frames[-1], mode="wrap").astype(np.int64) * self._stride)
        return np.stack(frames[::-1], axis=-1)
