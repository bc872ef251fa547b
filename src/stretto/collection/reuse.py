"""Whether a world carries anything from one episode into the next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from stretto.adapters.blocks import as_env
from stretto.core import NextEpisode
from stretto.errors import UsageError
from stretto.seeding import GLOBAL_GENERATORS, PrivateGenerators, SeedTree
from stretto.spaces import SpaceLayout
from stretto.workers.apart import Beat, Problem, run_apart

CHECKED_STEPS = 30
"""How many steps of an episode are compared."""

CHECK_SECONDS = 10.0


def carries_over(make: Callable[[], Any], episodes: Sequence[NextEpisode]) -> str | Problem | None:
    """Say what carries something from one episode into the next, if anything does: a wrapper's name, or the world's.

    The second of two episodes is played in a used world and in a fresh one, in a process of its own, and compared bit by
    bit. A world that raises there, or ends that process, is a problem.
    """
    try:
        return run_apart(partial(_culprit, make, episodes), "being checked", CHECK_SECONDS)
    except UsageError:  # it cannot be sent there
        return None


def _culprit(make: Callable[[], Any], episodes: Sequence[NextEpisode], beat: Beat) -> str | None:
    if _same(make, episodes, 0, beat):
        return None
    with closing(as_env(make())) as env:
        layers = [type(env).__name__]
        inner: Any = env
        while isinstance(inner, gymnasium.Wrapper):
            inner = inner.env
            layers.append(type(inner).__name__)
    for depth in range(1, len(layers)):
        if _same(make, episodes, depth, beat):
            return layers[depth - 1]
    return layers[-1]


def _same(make: Callable[[], Any], episodes: Sequence[NextEpisode], depth: int, beat: Beat) -> bool:
    """Whether a used world and a fresh one give the same, without the `depth` outermost wrappers."""
    first, second = episodes
    with closing(as_env(make())) as used, closing(as_env(make())) as fresh:
        worlds = [_inside(env, depth) for env in (used, fresh)]
        _play(worlds[0], first, beat)
        return _play(worlds[0], second, beat) == _play(worlds[1], second, beat)


def _inside(env: Any, depth: int) -> Any:
    for _ in range(depth):
        env = env.env
    return env


def _play(env: Any, episode: NextEpisode, beat: Beat) -> list[bytes]:
    """Play an episode with random actions; return what it gave, step by step."""
    space = copy.deepcopy(env.action_space)
    space.seed(0)
    layout = SpaceLayout(env.observation_space)
    tree = SeedTree(episode.seed or 0).child("global")
    guard = PrivateGenerators(tree, 0, GLOBAL_GENERATORS)

    def given(observation: Any, *numbers: Any) -> bytes:
        parts = [np.asarray(leaf.get(observation)) for leaf in layout.fixed]
        return b"".join(part.tobytes() for part in (*parts, np.array(numbers, np.float64)))

    options = None if episode.options is None else dict(episode.options)
    seen = [given(guard.run(env.reset, seed=episode.seed, options=options)[0])]
    for _ in range(CHECKED_STEPS):
        beat()
        observation, reward, terminated, truncated, _ = guard.run(env.step, space.sample())
        seen.append(given(observation, reward, terminated, truncated))
        if terminated or truncated:
            break
    return seen
