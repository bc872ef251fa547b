"""Any world that we know how to run, as one that we run."""

from __future__ import annotations

from typing import Any

import gymnasium

from stretto.adapters.pettingzoo import ParallelWorld
from stretto.errors import UsageError


def as_world(env: Any) -> gymnasium.Env[Any, Any]:
    """Return `env` as a Gymnasium environment; parallel environments are told by their agents."""
    if isinstance(env, gymnasium.Env):
        return env
    if hasattr(env, "possible_agents") and hasattr(env, "step"):
        if hasattr(env, "agent_iter") and hasattr(env, "agent_selection"):
            raise UsageError(
                f"an environment must have PettingZoo's parallel API, and {env} takes turns (AEC); convert it with "
                f"pettingzoo.utils.aec_to_parallel"
            )
        return ParallelWorld(env)
    raise UsageError(
        f"a factory must return a gymnasium.Env or a PettingZoo parallel environment, got {type(env).__name__}"
    )


def native(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the environment as its user knows it."""
    return env.parallel_env if isinstance(env, ParallelWorld) else env
