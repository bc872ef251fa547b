"""Agents that see images learn from them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stretto

pytest.importorskip("torch")


class WhereIsTheSquare(gymnasium.Env[Any, Any]):
    """Shows a bright square on the left or on the right of a noisy image, and rewards whoever says where."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (20, 20, 3), np.uint8), "time": spaces.Box(0, 1, (1,))}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        self.side = int(self.np_random.integers(2))
        image = self.np_random.integers(0, 60, (20, 20, 3), dtype=np.uint8)
        top, left = self.np_random.integers(0, 15), self.np_random.integers(0, 5) + 10 * self.side
        image[top : top + 5, left : left + 5] = 255
        return {"image": image, "time": np.array([self.steps / 8], np.float32)}

    def step(self, action: Any) -> Any:
        reward = float(action == self.side)
        self.steps += 1
        return self._seen(), reward, False, self.steps == 8, {}


def test_an_agent_learns_from_images_and_numbers_together() -> None:
    ppo = {"rows": 32, "batch": 64, "epochs": 4, "learning_rate": {"begin": 1e-3}, "normalize_observations": True}
    report = stretto.train(
        WhereIsTheSquare,
        "ppo",
        steps=3_000,
        num_envs=8,
        backend="serial",
        config={"ppo": {**ppo, "network": {"widths": [32]}}, "evaluation": {"every": 3_000, "episodes": 10}},
    )
    assert report.evaluations[-1]["return"] > 7.5  # of 8; guessing gives 4
