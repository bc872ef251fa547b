"""What drawing a batch from replay costs, and writing a piece, beside a plain numpy ring and Stable-Baselines3's buffer.

Contestants take turns, so that a busy moment of the machine meets all of them. Batches of megabytes are measured a second
time, each contestant alone, because their figures depend on who ran before. The plain ring stores every observation
twice and stacks that were stacked already, as most buffers do: it is the fastest that numpy allows, with the most memory.

Run it with: python benchmarks/storage.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from gymnasium import spaces
from machine import describe, load_warning

from stretto.storage import Block, Piece, Priorities, TransitionBuffer, TransitionLayout

ROUNDS = 41
LANES = 8
PIECE_ROWS = 32
DISCOUNT = 0.99


@dataclass(frozen=True)
class Setting:
    name: str
    space: spaces.Box
    stack: int
    steps: int


SETTINGS = [
    Setting("CartPole", spaces.Box(-1, 1, (4,), np.float32), 1, 100_000),
    Setting("84x84 uint8, stacks of 4", spaces.Box(0, 255, (84, 84), np.uint8), 4, 10_000),
]


def pieces(setting: Setting, agents: int, rng: np.random.Generator) -> list[Piece]:
    """Experience with an end in 100 steps, for all of a buffer."""
    grid = (PIECE_ROWS, LANES, agents)
    high = 255 if setting.space.dtype == np.uint8 else 1

    def seen(*shape: int) -> Any:
        return (rng.random((*shape, *setting.space.shape), np.float32) * high).astype(setting.space.dtype)

    found, first = [], seen(*grid[1:])
    for _ in range(setting.steps // (PIECE_ROWS * LANES)):
        observations = seen(*grid)
        observations[0], first = first, seen(*grid[1:])
        terminated = np.repeat(rng.random((*grid[:2], 1)) < 0.01, agents, axis=2)
        terminated[-1] = False
        acted = np.ones(grid, bool)
        acted[1:] = ~terminated[:-1]
        terminated &= acted
        acted[1:] = ~terminated[:-1]
        rewards, actions = rng.random(grid, np.float32) * acted, rng.integers(0, 2, grid)
        found.append(Piece(observations, actions, acted, rewards, terminated, np.zeros(grid, bool), first))
    return found


class Plain:
    """A ring that holds each transition as it is drawn; one agent."""

    def __init__(self, setting: Setting) -> None:
        shape = (setting.stack, *setting.space.shape) if setting.stack > 1 else setting.space.shape
        self._size = setting.steps
        self._seen, self._next = (np.ones((self._size, *shape), setting.space.dtype) for _ in range(2))
        self._actions = np.zeros(self._size, np.int64)
        self._rewards, self._discounts = np.zeros(self._size, np.float32), np.ones(self._size, np.float32)

    def sample(self, rng: np.random.Generator, count: int) -> tuple[Any, ...]:
        drawn = rng.integers(0, self._size, count)
        arrays = (self._seen, self._actions, self._rewards, self._discounts, self._next)
        return tuple(array[drawn] for array in arrays)


def sb3_buffer(setting: Setting) -> Callable[[int], Any] | None:
    """Return their `sample`, which also turns what it drew into torch tensors."""
    try:
        from stable_baselines3.common.buffers import ReplayBuffer
    except ImportError:
        return None
    shape = (setting.stack, *setting.space.shape) if setting.stack > 1 else setting.space.shape
    low, high = float(setting.space.low.min()), float(setting.space.high.max())
    space = spaces.Box(low, high, shape, setting.space.dtype.type)
    buffer = ReplayBuffer(setting.steps, space, spaces.Discrete(2), n_envs=LANES)
    buffer.full = True
    buffer.observations[:], buffer.next_observations[:] = 1, 1  # memory that was never written costs nothing to read
    return buffer.sample


def alone(contestants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median microseconds of each, one after the other."""
    return {name: race({name: call})[name] for name, call in contestants.items()}


def race(contestants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median microseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, call in contestants.items():
            call()
            began = time.perf_counter()
            for _ in range(5):
                call()
            times[name].append((time.perf_counter() - began) / 5 * 1e6)
    return {name: median(found) for name, found in times.items()}


def filled(setting: Setting, agents: int) -> tuple[TransitionBuffer, list[Piece]]:
    block = Block(tuple(f"agent_{i}" for i in range(agents)), setting.space, spaces.Discrete(2), LANES)
    buffer = TransitionBuffer(TransitionLayout(block, setting.steps, PIECE_ROWS, setting.stack))
    written = pieces(setting, agents, np.random.default_rng(0))
    for piece in written:
        buffer.extend(piece)
    return buffer, written


def measure(setting: Setting) -> None:
    buffer, written = filled(setting, 1)
    plain, theirs = Plain(setting), sb3_buffer(setting)
    rng = np.random.default_rng(0)
    snapshot = buffer.snapshot()
    priorities = Priorities(buffer.layout.ring)
    priorities.follow(snapshot.range)
    for count in (64, 256):
        contestants: dict[str, Callable[[], Any]] = {
            "stretto": lambda count=count: snapshot.sample([rng], count),
            "stretto, 3 steps": lambda count=count: snapshot.sample([rng], count, n_steps=3),
            "stretto, prioritized": lambda count=count: prioritized(snapshot, rng, count, priorities),
            "plain ring": lambda count=count: plain.sample(rng, count),
        }
        if theirs is not None:
            contestants["Stable-Baselines3"] = lambda count=count: theirs(count)
        show(f"{setting.name}, sample {count}", race(contestants))
        if setting.stack > 1:
            show(f"{setting.name}, sample {count}, alone", alone(contestants))
    snapshot.release()
    target = np.zeros((PIECE_ROWS * 64, LANES, 1, *setting.space.shape), setting.space.dtype)
    place = iter(np.arange(10**9) % 64 * PIECE_ROWS)

    def copy() -> None:
        begin = next(place)
        target[begin : begin + PIECE_ROWS] = written[0].observations

    buffer, endless = TransitionBuffer(buffer.layout), closing(written[0])
    show(
        f"{setting.name}, extend by {PIECE_ROWS} x {LANES} steps",
        race({"stretto": lambda: buffer.extend(endless), "copying its observations": copy}),
    )
    show(f"{setting.name}, snapshot", race({"stretto": lambda: buffer.snapshot().release()}))


def prioritized(snapshot: Any, rng: np.random.Generator, count: int, priorities: Priorities) -> None:
    batch = snapshot.sample_prioritized([rng], count, priorities, correction=0.5)
    priorities.set(batch.numbers, batch.rewards)


def closing(piece: Piece) -> Piece:
    """The same piece with all episodes over before its last row, so that it can follow itself."""
    terminated, acted = piece.terminated.copy(), piece.acted.copy()
    terminated[-2], acted[-2], acted[-1] = True, True, False
    return replace(piece, terminated=terminated, acted=acted, next_observations=None)


def blocks() -> None:
    setting = SETTINGS[0]
    for agents in (1, 8):
        buffer, _ = filled(setting, agents)
        with buffer.snapshot() as snapshot:
            draw = partial(snapshot.sample, [np.random.default_rng(i) for i in range(agents)], 64)
            show(f"CartPole, sample 64 for {agents} agents", race({"stretto": draw}))


def show(what: str, figures: dict[str, float]) -> None:
    print(f"{what:48}" + "".join(f"  {name} {microseconds:,.0f} µs" for name, microseconds in figures.items()))


def main() -> None:
    print(describe("numpy", "stable-baselines3"))
    if warning := load_warning():
        print(warning)
    for setting in SETTINGS:
        measure(setting)
    blocks()


if __name__ == "__main__":
    main()
