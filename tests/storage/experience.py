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


def block_of(agents: int = 1, lanes: int = 1) -> Block:
    names = tuple(f"agent_{i}" for i in range(agents))
    return Block(names, OBSERVATIONS, ACTIONS, lanes, {"hidden": ((3,), np.float32)})


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

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class World:
    """Makes up experience of a block: every observation is another number.

    Agents act in every row of an episode (`always`), or in half of them; then they may also end alone.
    """

    block: Block
    rng: np.random.Generator
    end_chance: float = 0.2
    always: bool = True
    number: int = 0
    steps: dict[tuple[int, int], list[Step]] = field(default_factory=dict)

    def __post_init__(self):
        self.shape = self.block.lanes, len(self.block.agents)
        self.steps = {(lane, agent): [] for lane in range(self.shape[0]) for agent in range(self.shape[1])}
        self.alive = np.ones(self.shape, bool)  # a lane in which nobody is shows last observations, then begins again
        self.pending = self._new()

    def _new(self):
        self.number += int(np.prod(self.shape))
        return (self.number - np.arange(np.prod(self.shape))).reshape(self.shape)

    def piece(self, count: int) -> Piece:
        """Go on for `count` rows."""
        rows = [self._row(self.end_chance) for _ in range(count)]
        return self._piece(rows, observed(self.pending))

    def rollout(self, count: int) -> Piece:
        """Go on for `count` rows, and one of last observations: all who are left end in the one before."""
        ends = [self.end_chance] * max(0, count - 2) + [0.0, 1.0][-count:]  # an end before the last would take its row
        return self._piece([self._row(chance) for chance in (*ends, 0.0)], None)

    def _piece(self, rows, following) -> Piece:
        seen, actions, acted, rewards, terminated, truncated = map(np.stack, zip(*rows, strict=True))
        for (lane, agent), steps in self.steps.items():
            steps += [
                Step(
                    int(seen[i, lane, agent]),
                    tuple(actions[i, lane, agent].tolist()),
                    rewards[i, lane, agent],
                    bool(terminated[i, lane, agent]),
                    bool(truncated[i, lane, agent]),
                    bool(acted[i, lane, agent]),
                )
                for i in range(len(rows))
            ]
        extras = {"hidden": np.repeat(seen[..., None], 3, -1).astype(np.float32)}
        return Piece(observed(seen), actions, acted, rewards, terminated, truncated, following, extras)

    def _row(self, end_chance: float):
        rng, shape, alive = self.rng, self.shape, self.alive
        seen, self.pending = self.pending, self._new()
        acted = alive & (self.always | (rng.random(shape) < 0.5))
        actions = rng.integers(0, 9, (*shape, 2))
        rewards = np.where(alive, rng.standard_normal(shape), 0).astype(np.float32)
        over = (rng.random(shape[0]) < end_chance)[:, None] | np.zeros(shape, bool)
        if not self.always:
            over |= rng.random(shape) < end_chance / 2
        ended = over & alive
        terminated = ended & (rng.random(shape) < 0.5)
        self.alive = (alive & ~ended) | ~alive.any(axis=1, keepdims=True)
        return seen, actions, acted, rewards, terminated, ended & ~terminated


def contents(batch):
    """All that a batch of transitions holds, as bytes."""
    values = [batch.observations["image"], *batch.observations["number"], batch.actions, batch.rewards, batch.discounts]
    values += [batch.next_observations["image"], *batch.next_observations["number"], batch.extras["hidden"]]
    return [np.ascontiguousarray(value).tobytes() for value in values] + [batch.numbers.tolist(), batch.mask.tolist()]
