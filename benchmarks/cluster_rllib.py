"""Evaluation workers of RLlib on the episodes of `cluster.py`, for a Python that has RLlib; `cluster.py` starts this.

Each line that it reads is a number of seconds and a number of episodes; it answers with the seconds that these took.
"""

from __future__ import annotations

import sys
import time

import gymnasium
import numpy as np
import ray
from gymnasium import spaces
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env


class Sleeps(gymnasium.Env):
    """An episode of one step, which takes so many seconds."""

    observation_space = spaces.Box(0, 1, (4,))
    action_space = spaces.Discrete(2)

    def __init__(self, config: dict) -> None:
        self._seconds = config["seconds"]

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        if self._seconds:
            time.sleep(self._seconds)
        return np.zeros(4, np.float32), 1.0, True, False, {}


def algorithm(seconds: float, workers: int, episodes: int):
    """Return an algorithm that evaluates so many episodes at a time, in so many workers."""
    config = (
        PPOConfig()
        .environment("sleeps", env_config={"seconds": seconds})
        .env_runners(num_env_runners=0)
        .evaluation(
            evaluation_num_env_runners=workers,
            evaluation_duration=episodes,
            evaluation_duration_unit="episodes",
            evaluation_sample_timeout_s=600,
        )
    )
    return config.build_algo()


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr
    workers = int(sys.argv[1])
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    register_env("sleeps", Sleeps)
    built: tuple = ()
    for line in sys.stdin:
        seconds, episodes = float(line.split()[0]), int(line.split()[1])
        if built[:2] != (seconds, episodes):
            if built:
                built[2].stop()
            built = seconds, episodes, algorithm(seconds, workers, episodes)
        began = time.perf_counter()
        found = built[2].evaluate()
        took = time.perf_counter() - began
        assert found["env_runners"]["num_episodes"] >= episodes
        print(took, file=out, flush=True)


if __name__ == "__main__":
    main()
