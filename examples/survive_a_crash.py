"""A worker is killed in the middle of a run, and nobody notices but a counter."""

import os
import signal

import numpy as np

import stretto


def play(*, kill_at: int | None) -> np.ndarray:
    seen = []
    with stretto.make_vec("CartPole-v1", 8, backend="process", workers=2, isolate=True) as envs:
        envs.action_space.seed(0)
        envs.reset(seed=0)
        for number in range(200):
            if number == kill_at:
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            seen.append(envs.step(envs.action_space.sample()).observations)
        print(envs.statistics())
    return np.stack(seen)


undisturbed = play(kill_at=None)
disturbed = play(kill_at=100)
print("identical to the last bit:", undisturbed.tobytes() == disturbed.tobytes())
