"""PPO in one file, in the shape of CleanRL's scripts: a line says where `gym` comes from, and nothing else knows of us."""

import sys

import numpy as np
import torch
from torch.distributions import Categorical

import stretto.interop.cleanrl as gym

NUM_ENVS, NUM_STEPS, UPDATES = 4, 32, 3


def make_env(env_id):
    def thunk():
        return gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))

    return thunk


if __name__ == "__main__":
    torch.manual_seed(1)
    envs = gym.vector.SyncVectorEnv([make_env(sys.argv[1]) for _ in range(NUM_ENVS)])
    assert isinstance(envs.single_action_space, gym.spaces.Discrete)
    size = int(np.prod(envs.single_observation_space.shape))
    actor = torch.nn.Sequential(
        torch.nn.Linear(size, 16), torch.nn.Tanh(), torch.nn.Linear(16, int(envs.single_action_space.n))
    )
    critic = torch.nn.Sequential(torch.nn.Linear(size, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    obs = torch.zeros(NUM_STEPS + 1, NUM_ENVS, size)
    actions, logprobs, rewards, dones = (torch.zeros(NUM_STEPS, NUM_ENVS) for _ in range(4))
    running = np.zeros(NUM_ENVS)
    obs[0] = torch.Tensor(envs.reset(seed=1)[0])
    for _ in range(UPDATES):
        for step in range(NUM_STEPS):
            with torch.no_grad():
                chosen = Categorical(logits=actor(obs[step]))
                actions[step] = chosen.sample()
                logprobs[step] = chosen.log_prob(actions[step])
            seen, reward, terminations, truncations, infos = envs.step(actions[step].numpy().astype(np.int64))
            obs[step + 1], rewards[step] = torch.Tensor(seen), torch.tensor(reward)
            done = np.logical_or(terminations, truncations)
            dones[step] = torch.Tensor(done)
            running += reward
            if "final_info" in infos:
                for number, info in enumerate(infos["final_info"]):
                    if info and "episode" in info:
                        print(f"episodic_return={float(info['episode']['r'])} added={running[number]}")
            running[done] = 0
        with torch.no_grad():
            values = critic(obs)[..., 0]
            returns = torch.zeros_like(rewards)
            after = values[-1]
            for step in reversed(range(NUM_STEPS)):
                returns[step] = after = rewards[step] + 0.99 * (1 - dones[step]) * after
        ratio = (Categorical(logits=actor(obs[:-1])).log_prob(actions) - logprobs).exp()
        advantages = returns - values[:-1]
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        loss = ((critic(obs[:-1])[..., 0] - returns) ** 2).mean() - gain
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        obs[0] = obs[-1]
    print(f"loss={loss.item()}")
    envs.close()
