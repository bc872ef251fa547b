"""Worlds for the tests of meta-learning's names, and a wrapper like VariBAD's: its episodes are whole trials."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from stretto.games.pointgoal import Pointgoal


class Sums(gymnasium.Env):
    """Shows its steps and the sum of its actions; the reward is how far that is from the task. Ends at random steps."""

    def __init__(self, limit: int = 6, num_train_tasks: int = 0) -> None:
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.limit, self.num_train_tasks = limit, num_train_tasks
        self.goal = 0.0

    def reset_task(self, task: Any) -> None:
        if task is not None and not 0 <= task < 100:
            raise ValueError(f"no such task: {task}")
        self.goal = float(task or 0)

    def get_current_task(self) -> Any:
        return np.array([self.goal])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.sum, self.length = 0, 0, int(self.np_random.integers(2, self.limit))
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.sum += int(action)
        return self._see(), -abs(self.goal - self.sum), self.steps >= self.length, False, {"sum": self.sum}

    def _see(self) -> Any:
        return np.array([self.steps, self.sum], np.float32)


class SumsInADict(Sums):
    """Shows the same in parts, one of them in a dict within the dict."""

    def __init__(self) -> None:
        super().__init__()
        counts = spaces.Dict({"steps": spaces.Discrete(10)})
        self.observation_space = spaces.Dict({"counts": counts, "sum": spaces.Box(-1e6, 1e6, (1,), np.float32)})

    def _see(self) -> Any:
        return {"counts": {"steps": self.steps}, "sum": np.array([self.sum], np.float32)}


class LikeVariBad(gymnasium.Wrapper):
    """Plays several episodes of one task as one, and shows where one ends."""

    def __init__(self, env: gymnasium.Env, episodes_per_task: int) -> None:
        super().__init__(env)
        self.episodes_per_task = episodes_per_task
        low, high = env.observation_space.low, env.observation_space.high
        self.observation_space = spaces.Box(np.append(low, np.float32(0)), np.append(high, np.float32(1)))

    def reset(self, task: Any = None) -> Any:
        self.env.unwrapped.reset_task(task)
        self.left = self.episodes_per_task
        return self._seen(*self.env.reset())

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.left -= terminated or truncated
        if (terminated or truncated) and self.left:
            observation, _ = self.env.reset()
            return *self._seen(observation, info, 1.0)[:1], reward, False, False, info
        return *self._seen(observation, info)[:1], reward, terminated, truncated, info

    @staticmethod
    def _seen(observation: Any, info: Any, flag: float = 0.0) -> Any:
        return np.append(observation, flag).astype(np.float32), info


def like_varibad(episodes: int = 2) -> gymnasium.Env:
    return LikeVariBad(Sums(), episodes)


def wide_actions() -> gymnasium.Env:
    env = Pointgoal(horizon=4)
    env.action_space = spaces.Box(-0.5, 1.0, (2,), np.float32)
    return TimeLimit(env, 4)
