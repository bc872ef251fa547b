"""A world of many agents that see little: each walks on a line, and is paid for being near its middle."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Walkers(ParallelEnv):  # type: ignore[misc]  # PettingZoo publishes no types
    """Each sees where it was in the last 8 steps. An episode has 100 steps."""

    render_mode = None

    def __init__(self, count: int = 32) -> None:
        self.metadata = {"name": "walkers"}
        self.possible_agents = [f"walker_{number}" for number in range(count)]
        self.agents: list[str] = []
        self._places, self._left = np.zeros((count, 8), np.float32), 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (8,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def _told(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def _seen(self) -> dict[str, Any]:
        return dict(zip(self.possible_agents, self._places, strict=True))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self._left = list(self.possible_agents), 100
        self._places = np.random.default_rng(seed).standard_normal(self._places.shape).astype(np.float32)
        return self._seen(), self._told({})

    def step(self, actions: dict[str, Any]) -> Any:
        moved = np.array([actions[agent] for agent in self.possible_agents], np.float32) - 1
        self._places = np.concatenate([self._places[:, :1] + 0.1 * moved[:, None], self._places[:, :-1]], 1)
        rewards = dict(zip(self.possible_agents, (-np.abs(self._places[:, 0])).tolist(), strict=True))
        self._left -= 1
        if not self._left:
            self.agents = []
        return self._seen(), rewards, self._told(False), self._told(not self._left), self._told({})
