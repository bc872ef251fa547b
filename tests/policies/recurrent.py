"""Stochastic policies with a memory: what they do follows from all that they have seen, and from all that they drew."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core import AgentPolicy, BlockAnswer, BlockPolicy, MultiAgentPolicy


def seen_as_number(observation: Any) -> float:
    """Return a number that any other observation changes."""
    parts = observation.values() if isinstance(observation, dict) else [observation]
    return float(sum((np.arange(1, part.size + 1) * part.reshape(-1).astype(np.float64)).sum() for part in parts))


class Recurrent(AgentPolicy):
    """Draws from its generator and from its action space; a list is its memory."""

    def __init__(self, world: Any = None, agent: str = "") -> None:
        self.space = world.action_spaces[agent] if world is not None else None
        self.memory = [0.5]

    def step(self, observation: Any) -> int:
        self.memory.append((self.memory[-1] * 3.7 + seen_as_number(observation) * 0.61803) % 1.0)
        drawn = self.space.sample() if self.space is not None else 0
        return int(self.memory[-1] * 5 + drawn + self.rng.integers(8)) % 8

    def snapshot(self) -> int:
        return len(self.memory)

    def restore(self, snapshot: int) -> None:
        del self.memory[snapshot:]


class RecurrentTogether(MultiAgentPolicy):
    """The same, for many at once."""

    calls = 0

    def agent_policy(self, agent: str) -> AgentPolicy:
        return Recurrent()

    def step_batch(self, agent_policies: Any, observations: Any) -> list[int]:
        self.calls += 1
        return [policy.step(observation) for policy, observation in zip(agent_policies, observations, strict=True)]


class RecurrentBlock(BlockPolicy):
    """A block of agents: the state is a number each."""

    def initial_state(self) -> Any:
        return np.float64(0.5)

    def step_block(self, observations: Any, states: Any, choices: Any) -> BlockAnswer:
        parts = list(observations.values()) if isinstance(observations, dict) else [observations]
        flat = [np.asarray(part, np.float64).reshape(*part.shape[:2], -1) for part in parts]
        seen = sum((np.arange(1, part.shape[2] + 1) * part).sum(axis=2) for part in flat)
        after = (states * 3.7 + seen * 0.61803) % 1.0
        drawn = choices.uniform(1)[..., 0]
        return BlockAnswer((after * 5 + drawn * 8).astype(np.int64) % 8, after, {"seen": seen, "drawn": drawn})


class Forgotten(Recurrent):
    """Has a memory, and cannot be restored."""

    snapshot = restore = None
