"""PettingZoo's parallel environments: observations by agent, and in one block for policies that batch.

Needs a package of such environments: pip install 'stretto[pettingzoo]' mpe2
"""

import numpy as np
from mpe2 import simple_spread_v3

import stretto

with stretto.make_vec(simple_spread_v3.parallel_env, 16, env_kwargs={"N": 3, "max_cycles": 25}) as envs:
    print(envs.choice)
    observations, infos = envs.reset(seed=0)
    print({agent: values.shape for agent, values in observations.items()})
    print("one block for all agents of a kind:", observations.blocks[0].shape)
    for agent in envs.possible_agents:
        envs.action_space(agent).seed(0)
    returns = {agent: np.zeros(16) for agent in envs.possible_agents}
    for _ in range(25):
        actions = {agent: envs.action_space(agent).sample() for agent in envs.possible_agents}
        step = envs.step(actions)
        for agent, rewards in step.rewards.items():
            returns[agent] += rewards
    print({agent: round(float(values.mean()), 2) for agent, values in returns.items()})
    print("alive:", int(envs.mask.blocks[0].sum()), "of", envs.mask.blocks[0].size)
