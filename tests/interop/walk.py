"""Worlds for the tests of interop, in a module that imports neither SB3 nor torch: workers import it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit


class Walk(gymnasium.Env):
    """Walks to the right or the left; has a Dict of observations, infos of all kinds, a method and an option."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012  as Gymnasium spells it

    def __init__(self, goal: int = 4, render_mode: str | None = None, reuses: bool = False) -> None:
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-99, 99, (2,), np.float32), "goal": spaces.Discrete(100)}
        )
        self.action_space = spaces.Discrete(2)
        self.render_mode = render_mode
        self.goal = goal
        self.called = 0
        self.reuses = reuses
        self.place = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        start = (options or {}).get("start", self.np_random.integers(3))
        self.place[:] = start
        return self._see(), {"start": int(start), "seeded": seed is not None}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 1 if action else -1
        over = bool(self.place[0] >= self.goal)
        info = {"place": float(self.place[0]), "word": "right" if action else "left", "both": self.place.copy()}
        if over:
            info["won"] = {"by": 1, "at": "the goal"}
        return self._see(), float(self.place[0]), over, False, info

    def _see(self) -> dict[str, Any]:
        return {"place": self.place if self.reuses else self.place.copy(), "goal": self.goal}

    def count_call(self, by: int = 1) -> int:
        self.called += by
        return self.called

    def render(self) -> Any:
        return np.full((3, 4, 3), int(self.place[0]) % 256, np.uint8)


def make_walk(**kwargs: Any) -> gymnasium.Env:
    return TimeLimit(Walk(**kwargs), 6)


def make_cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def make_pendulum() -> gymnasium.Env:
    return gymnasium.make("Pendulum-v1", max_episode_steps=7)


def make_lake() -> gymnasium.Env:
    return gymnasium.make("FrozenLake-v1")


def make_hopper() -> gymnasium.Env:
    return gymnasium.make("Hopper-v5")
