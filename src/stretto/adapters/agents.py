"""Which world is which: anything that we know how to play, by agent."""

from __future__ import annotations

from typing import Any, cast

import gymnasium

from stretto.adapters.aec import AecAgents
from stretto.adapters.base import NativeWorld
from stretto.adapters.gymnasium import OneAgent
from stretto.adapters.old_gym import modern
from stretto.adapters.pettingzoo import ParallelAgents
from stretto.adapters.sorrel.world import in_turns
from stretto.adapters.turns import TurnAgents
from stretto.adapters.wrapped import WrappedAgents
from stretto.core import AUTO, SEQUENTIAL, SIMULTANEOUS, AgentWorld, TurnWorld, turns_of
from stretto.errors import UsageError


def as_agents(env: Any, turns: str = SIMULTANEOUS) -> AgentWorld:
    """Return a world as one by agent; `turns` is how a `TurnWorld` is played. AEC games have their own order.

    Only with `AUTO` are other worlds played as they are.
    """
    if isinstance(env, WrappedAgents):
        return env
    env = in_turns(env)
    if isinstance(env, TurnWorld):
        return TurnAgents(env, sequential=turns_of(turns) == SEQUENTIAL)
    if hasattr(env, "agent_iter"):
        return AecAgents(env)
    env = env if isinstance(env, NativeWorld) else modern(env)
    if turns not in (SIMULTANEOUS, AUTO):
        inside = type(getattr(env, "unwrapped", env)).__name__
        raise UsageError(f"only a TurnWorld has {turns} turns, got {inside}; play it in simultaneous ones")
    if isinstance(env, NativeWorld):  # an adapter of ours for a program that has a kind of worlds of its own
        return cast(AgentWorld, env)
    if isinstance(env, gymnasium.Env):
        return OneAgent(env)
    if hasattr(env, "begin_turn"):
        members = {name for name in (*TurnWorld.__annotations__, *vars(TurnWorld)) if not name.startswith("_")}
        missing = ", ".join(sorted(name for name in members if not hasattr(env, name)))
        raise UsageError(
            f"a TurnWorld must have all of its members from the start, and {type(env).__name__} lacks {missing}"
        )
    if hasattr(env, "possible_agents") and hasattr(env, "step"):
        return ParallelAgents(env)
    raise UsageError(
        f"a world must be a gymnasium.Env, one of PettingZoo's environments or a TurnWorld, got {type(env).__name__}"
    )
