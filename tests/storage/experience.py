"""Random experience, as pieces to write and as a plain list of what happened, for tests to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from gymnasium import spaces

from stretto.storage import Block, Piece

OBSERVATIONS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 2), np.uint8),
        "number": spaces.Tuple([spaces.Box(-np.inf, np.inf, (), np.float64)]),
    }
)
ACTIONS = spaces.MultiDiscrete([9, 9])


def block_of(agents: int = 1, lanes: int = 1, always_acts: bool = True) -> Block:
    names = tuple(f"agent_{i}" for i in range(agents))
    return Block(names, OBSERVATIONS, ACTIONS, lanes, {"hidden": ((3,), np.float32)}, always_acts)


def streams(agents, seed=0):
    """A stream for each agent that does not depend on how many there are."""
    return [np.random.default_rng([seed, agent]) for agent in range(agents)]


def observed(numbers):
    """The observations that unlike numbers stand for."""
    numbers = np.asarray(numbers, np.int64)
    image = (numbers[..., None, None] * np.array([[1, 3], [5, 7]])).astype(np.uint8)
    return {"image": image, "number": (numbers.astype(np.float64),)}


@dataclass
class Step:
    """What one agent met in one row of one lane."""

    seen: int
    action: tuple[int, int]
    reward: np.float32
    terminated: bool
    truncated: bool
    acted: bool
    final: int

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class World:
    """Makes up experience of a block: every observation is another number."""

    block: Block
    rng: np.random.Generator
    end_chance: float = 0.2
    number: int = 0
    steps: dict[tuple[int, int], list[Step]] = field(default_factory=dict)

    def __post_init__(self):
        self.shape = self.block.lanes, len(self.block.agents)
        self.steps = {(lane, agent): [] for lane in range(self.shape[0]) for agent in range(self.shape[1])}
        self.alive = np.ones(self.shape, bool)
        self.pending = self._new()
        self.will_act = self._acting()

    def _new(self):
        self.number += int(np.prod(self.shape))
        return (self.number - np.arange(np.prod(self.shape))).reshape(self.shape)

    def _acting(self):
        return self.alive & (self.block.always_acts | (self.rng.random(self.shape) < 0.5))

    def piece(self, count: int, *, whole: bool = False) -> Piece:
        """Go on for `count` rows; if they are a `whole` rollout, all who are left end in the last of them."""
        rows = [self._row(whole and i == count - 1) for i in range(count)]
        seen, actions, rewards, terminated, truncated, acted, finals = map(np.stack, zip(*rows, strict=True))
        for (lane, agent), steps in self.steps.items():
            steps += [
                Step(
                    int(seen[i, lane, agent]),
                    tuple(actions[i, lane, agent].tolist()),
                    rewards[i, lane, agent],
                    bool(terminated[i, lane, agent]),
                    bool(truncated[i, lane, agent]),
                    bool(acted[i, lane, agent]),
                    int(finals[i, lane, agent]),
                )
                for i in range(count)
            ]
        return Piece(
            observed(seen),
            actions,
            rewards,
            terminated,
            truncated,
            observed(self.pending),
            observed(finals[terminated | truncated]),
            None if self.block.always_acts else acted,
            {"hidden": np.repeat(seen[..., None], 3, -1).astype(np.float32)},
        )

    def _row(self, last: bool):
        rng, shape = self.rng, self.shape
        seen, acted, alive = self.pending, self.will_act, self.alive
        actions = rng.integers(0, 9, (*shape, 2))
        rewards = np.where(alive, rng.standard_normal(shape), 0).astype(np.float32)
        # In a world whose agents always act, ends are of the lane; else agents may also die alone.
        over = (rng.random(shape[0]) < self.end_chance)[:, None] | last | np.zeros(shape, bool)
        if not self.block.always_acts:
            over |= rng.random(shape) < self.end_chance / 2
        elif shape[1] > 1:
            over = np.repeat(over[:, :1], shape[1], axis=1)
        ended = over & alive
        terminated = ended & (rng.random(shape) < 0.5)
        truncated = ended & ~terminated
        finals = self._new()
        self.alive = alive & ~ended
        finished = ~self.alive.any(axis=1, keepdims=True)  # the lane begins another episode
        self.alive |= finished
        self.pending = self._new()
        self.will_act = self._acting()
        return seen, actions, rewards, terminated, truncated, acted, finals


def contents(batch):
    """All that a batch of transitions holds, as bytes."""
    values = [batch.observations["image"], *batch.observations["number"], batch.actions, batch.rewards, batch.discounts]
    values += [batch.next_observations["image"], *batch.next_observations["number"], batch.extras["hidden"]]
    return [np.ascontiguousarray(value).tobytes() for value in values] + [batch.numbers.tolist(), batch.mask.tolist()]
