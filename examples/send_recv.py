"""Go on with whichever environments are ready first, while the slow ones are still at work."""

import time

import gymnasium
import numpy as np

import stretto


class Uneven(gymnasium.Env[np.ndarray, int]):
    """A world whose steps take between 1 and 20 ms."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        wait = self.np_random.uniform(0.001, 0.02)
        time.sleep(wait)
        return np.array([wait, action], np.float32), 1.0, False, False, {}


with stretto.make_vec(Uneven, 8, backend="thread", workers=8) as envs:
    envs.reset(seed=0)
    envs.send(np.zeros(8, np.int64))
    steps = np.zeros(8, np.int64)
    for _ in range(50):
        ready = envs.recv(ready=4)  # the first four to finish
        steps[ready.ids] += 1
        envs.send(np.ones(4, np.int64), ready.ids)
    envs.recv()  # what is still under way
    print("steps by environment:", steps.tolist())
