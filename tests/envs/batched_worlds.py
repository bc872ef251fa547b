"""Worlds that are batched already, for tests, and what is seen of them."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space


class Counting(gymnasium.Env):
    """Counts its steps, up to three; draws nothing at random."""

    observation_space = spaces.Box(0, 10, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.array([self.steps, action], np.float32), float(action), self.steps == 3, False, {}


class CountingTogether(gymnasium.vector.VectorEnv):
    """The same, batched; `shift` is added to its observations, and `stop_at` makes it raise."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  as Gymnasium has it

    def __init__(self, num_envs, shift=0.0, stop_at=None, with_infos=False):
        self.num_envs, self.shift, self.stop_at, self.with_infos = num_envs, shift, stop_at, with_infos
        self.single_observation_space, self.single_action_space = Counting.observation_space, Counting.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = np.zeros(self.num_envs, np.int64)
        return np.full((self.num_envs, 2), self.shift, np.float32), {}

    def step(self, actions):
        begins = self.steps == 3
        self.steps = np.where(begins, 0, self.steps + 1)
        if self.stop_at is not None and (self.steps == self.stop_at).any():
            raise RuntimeError("stopped")
        shown = np.where(begins, 0, actions)
        observations = np.stack([self.steps, shown], 1).astype(np.float32) + np.float32(self.shift)
        infos = {"twice": 2 * self.steps, "_twice": self.steps > 1} if self.with_infos else {}
        never = np.zeros(self.num_envs, bool)
        return observations, shown.astype(np.float64), self.steps == 3, never, infos


class Reusing(CountingTogether):
    """Writes into the same arrays, which lie by columns, in every step; counts are actions of the step before."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.seen, self.last = np.zeros((2, num_envs), np.float32), np.zeros(num_envs)
        self.rewards, self.flags = np.zeros(num_envs), np.zeros((2, num_envs), bool)

    def step(self, actions):
        self.seen[:], self.rewards[:] = self.last, self.last
        self.flags[0] = self.last == 2
        self.last = actions
        return self.seen.T, self.rewards, *self.flags, {}


class Worded(gymnasium.vector.VectorEnv):
    """Observes a number and a text, or a number and a pair; its actions have two parts."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  as Gymnasium has it

    def __init__(self, num_envs, word):
        self.num_envs, self.word, self.total = num_envs, word, np.zeros(num_envs)
        other = spaces.Text(4) if word else spaces.Box(0, 100, (2,))
        self.single_observation_space = spaces.Dict(number=spaces.Box(0, 100, (1,)), other=other)
        self.single_action_space = spaces.Dict(one=spaces.Discrete(5), two=spaces.Box(0, 1, (2,)))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = np.zeros(self.num_envs)
        return self._seen(), {}

    def step(self, actions):
        self.total = self.total + actions["one"] + actions["two"].sum(1)
        never = np.zeros(self.num_envs, bool)
        return self._seen(), self.total.tolist(), never, never, {"total": self.total, "_total": ~never}

    def _seen(self):
        number = self.total[:, None].astype(np.float32)
        words = tuple(f"{total:g}"[:4] for total in self.total)
        return {"number": number, "other": words if self.word else np.hstack([number, number])}


def trajectory(envs, steps=40, before_step=lambda k: None):
    """Play, and return all that was seen."""
    envs.action_space.seed(1)
    seen = [envs.reset(seed=5)[0]]
    for k in range(steps):
        before_step(k)
        seen.append(tuple(envs.step(envs.action_space.sample())))
    return seen
