"""Any world that we know how to run, as one that we run."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from stretto.adapters.pettingzoo import ParallelWorld
from stretto.adapters.turns import ParallelTurns
from stretto.core import TurnWorld
from stretto.errors import UsageError


def as_world(env: Any) -> gymnasium.Env[Any, Any]:
    """Return `env` as a Gymnasium environment; parallel environments are told by their agents."""
    if isinstance(env, gymnasium.Env):
        return env
    if isinstance(env, TurnWorld):
        env = ParallelTurns(env)
    if hasattr(env, "possible_agents") and hasattr(env, "step"):
        if hasattr(env, "agent_iter"):
            raise UsageError(
                f"an environment must have PettingZoo's parallel API, and {env} takes turns (AEC); convert it with "
                f"pettingzoo.utils.aec_to_parallel"
            )
        return ParallelWorld(env)
    raise UsageError(
        f"a factory must return a gymnasium.Env, a PettingZoo parallel environment or a TurnWorld, got {type(env).__name__}"
    )


def native(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the environment as its user knows it."""
    return env.parallel_env if isinstance(env, ParallelWorld) else env


def ensure_generator(env: gymnasium.Env[Any, Any]) -> None:
    """Let a world that was never seeded have its `np_random` now, so that its state can be recorded."""
    base = env.unwrapped
    if getattr(base, "_np_random", None) is None:
        _ = base.np_random


def generator_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any] | None:
    """Return the state of a world's own `np_random`, if it has one."""
    generator = getattr(env.unwrapped, "_np_random", None)
    return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else None


def set_generator(env: gymnasium.Env[Any, Any], state: dict[str, Any]) -> None:
    """Give a world an `np_random` in this state."""
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    env.unwrapped._np_random = np.random.Generator(bits)  # noqa: SLF001  the setter of np_random forgets the seed
