"""Sorrel's own loop, to compare with: the examples that it brings, played by actions that are given."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from stretto.adapters.sorrel import visual_field
from stretto.adapters.sorrel.missions import make
from stretto.adapters.sorrel.world import seed_globals

EXAMPLES = ("treasurehunt", "treasurehunt_threadsafe", "cleanup", "tag", "iowa")


def kinds_of(env: Any) -> list[str]:
    """Return what stands where."""
    return [entity.kind for entity in env.world.map.flat]


def with_its_own_eyes() -> None:
    """Let Sorrel look at its grids, and fill them, as it does without us."""
    from sorrel.observation import observation_spec
    from sorrel.worlds import gridworld

    gridworld.copy = copy

    if observation_spec.visual_field is visual_field.visual_field:
        observation_spec.visual_field = visual_field._its_own


def _next(chosen: Iterator[int], _: Any) -> int:
    return next(chosen)


def own_epoch(example: str, seed: int, actions: np.ndarray) -> list[Any]:
    """Play turns of an example with Sorrel's own `take_turn`: what each agent saw and earned, and what stood where."""
    env = make(example).env
    with_its_own_eyes()
    heard: list[Any] = []
    for number, agent in enumerate(env.agents):
        agent.get_action = partial(_next, iter(actions[:, number].tolist()))
        agent.add_memory = lambda state, action, reward, done: heard.append((np.float32(state).ravel(), float(reward)))
    seed_globals(seed)
    env.reset()
    played = []
    for _ in range(len(actions)):
        env.take_turn()
        played.append((tuple(heard), kinds_of(env), float(env.world.total_reward)))
        heard.clear()
    return played
