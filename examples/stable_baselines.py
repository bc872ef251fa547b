"""PPO of Stable-Baselines3 learns on our vector environments.

Needs it to be installed: pip install 'stretto[sb3]'
"""

import torch
from stable_baselines3 import PPO

from stretto.interop.sb3 import sb3_vec_env

torch.set_num_threads(1)  # networks this small only wait for further ones
envs = sb3_vec_env("CartPole-v1", 16)
print(envs.vector_env.choice)  # vector_env is the stretto.VectorEnv
model = PPO("MlpPolicy", envs, n_steps=64, n_epochs=5, batch_size=256, seed=0, device="cpu")
for interval in range(4):
    model.learn(16 * 64, reset_num_timesteps=interval == 0)
    lengths = [episode["l"] for episode in model.ep_info_buffer]
    print(f"after {model.num_timesteps:5} steps an episode lasts {sum(lengths) / len(lengths):.0f}")
envs.close()
