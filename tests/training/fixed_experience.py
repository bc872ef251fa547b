"""Experience that is the same however it is learned from: random rows of all agents, of which some are learned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.seeding import SeedTree
from stretto.storage.block import Piece
from stretto.storage.of_layout import buffer_of
from stretto.training.learners.base import LearnerBlock

LANES = 4


def block_of(agents: Sequence[int], seen: spaces.Space[Any], done: spaces.Space[Any]) -> LearnerBlock:
    names = tuple(f"agent_{agent}" for agent in agents)
    return LearnerBlock(names, seen, done, tuple(map(SeedTree(5).child, names)), LANES)


def drawn(space: spaces.Space[Any], draw: np.random.Generator, *axes: int) -> Any:
    """Return values of a space with leading axes."""
    if isinstance(space, spaces.Dict):
        return {name: drawn(part, draw, *axes) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return draw.integers(0, space.n, axes)
    assert isinstance(space, spaces.Box)
    if space.dtype == np.uint8:
        return draw.integers(0, 256, (*axes, *space.shape), dtype=np.uint8)
    return draw.standard_normal((*axes, *space.shape)).astype(np.float32)


def piece_of(learner: Any, agent: int, number: int, rows: int, *, acts: bool = True) -> Piece:
    """Return what an agent saw in a segment: it follows from the two numbers alone."""
    draw = np.random.default_rng([agent, number])
    layout = learner.layout.block
    axes = rows, LANES, 1
    ended = draw.random(axes) < 0.1
    after = np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])  # the last observation of an episode
    ended &= ~after
    acted = ~np.concatenate([np.zeros_like(ended[:1]), ended[:-1]]) & acts
    extras: dict[str, Any] = {}
    for name, (shape, _) in layout.extras.items():
        extras[name] = draw.standard_normal((*axes, *shape)).astype(np.float32)
        if name == "memory":
            extras[name][1:][~acted[:-1]] = 0  # what begins after an end begins with nothing
    done = draw.random(axes) < 0.5
    return Piece(
        drawn(layout.observation_space, draw, *axes),
        drawn(layout.action_space, draw, *axes),
        acted,
        draw.standard_normal(axes).astype(np.float32),
        ended & done,
        ended & ~done,
        drawn(layout.observation_space, draw, *axes[1:]),
        extras,
    )


def learn(learner: Any, pieces: Sequence[Piece], progress: float = 0.5) -> Any:
    """Let a learner learn from a segment, given what each of its agents saw."""

    def joined(*parts: Any) -> Any:
        if isinstance(parts[0], dict):
            return {name: joined(*(part[name] for part in parts)) for name in parts[0]}
        return np.concatenate(parts, 1 if parts[0].shape[:2] == (LANES, 1) else 2)

    names = "observations", "actions", "acted", "rewards", "terminated", "truncated", "next_observations", "extras"
    buffer = buffer_of(learner.layout)
    buffer.extend(Piece(*(joined(*(getattr(piece, name) for piece in pieces)) for name in names)))
    with buffer.snapshot() as seen:
        return learner.learn(seen, progress)
