"""Every episode of every environment has a task of its own, known from its slot, its number and its stream."""

import gymnasium
import numpy as np

import stretto


class ReachGoal(gymnasium.Env[np.ndarray, np.ndarray]):
    """Walk to a goal that the task gives; an episode lasts ten steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal, self.place, self.left = np.asarray(options["task"]), np.zeros(2), 10
        return self.place.copy(), {"goal": self.goal}

    def step(self, action):
        self.place, self.left = self.place + action, self.left - 1
        return self.place.copy(), -float(np.linalg.norm(self.goal - self.place)), False, self.left == 0, {}


def goal(slot: int, episode: int, stream: np.random.Generator) -> list[float]:
    angle = stream.uniform(0, 2 * np.pi)
    return [3 * np.cos(angle), 3 * np.sin(angle)]


for workers in (1, 2):  # the same tasks at any width
    with stretto.make_vec(ReachGoal, 4, backend="process", workers=workers, tasks=goal) as envs:
        _, infos = envs.reset(seed=0)
        for _ in range(11):
            last = envs.step(np.full((4, 2), 0.1))
        print(workers, "workers; goals of the second episodes:", np.round(last.infos["goal"], 2).tolist())
