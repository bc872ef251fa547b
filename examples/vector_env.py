"""Sixty-four environments behind Gymnasium's vector API: change one word, keep the rest of the program."""

import numpy as np

import stretto

with stretto.make_vec("CartPole-v1", 64) as envs:  # was: gymnasium.make_vec("CartPole-v1", 64)
    print(envs.choice)
    envs.action_space.seed(0)
    observations, infos = envs.reset(seed=0)
    total = 0.0
    for _ in range(500):
        observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
        total += float(np.sum(rewards))
    counts = envs.statistics()
    print(f"{counts.steps} steps, {counts.episodes} episodes, mean return {total / counts.episodes:.1f}")
