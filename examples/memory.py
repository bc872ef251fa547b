"""Memory: a pole is balanced without seeing how fast anything moves. An LSTM works it out from what was seen before."""

import sys

import gymnasium

import stretto


class WithoutVelocities(gymnasium.ObservationWrapper):
    """Shows the cart's position and the pole's angle alone."""

    def __init__(self, env):
        super().__init__(env)
        seen = env.observation_space
        self.observation_space = gymnasium.spaces.Box(seen.low[::2], seen.high[::2])

    def observation(self, observation):
        return observation[::2]


def cart_pole():
    return WithoutVelocities(gymnasium.make("CartPole-v1"))


settings = {
    "rows": 128,
    "batch": 256,
    "epochs": 8,
    "sequence": 16,
    "learning_rate": {"begin": 1e-3, "end": 0.0},
    "normalize_observations": True,
    "normalize_rewards": True,
}
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000
for memory in (None, "lstm"):
    config = {
        "ppo": {**settings, "network": {"widths": [64], "memory": memory}},
        "evaluation": {"every": steps, "episodes": 20},
    }
    report = stretto.train(cart_pole, "ppo", steps=steps, num_envs=8, seed=0, config=config)
    print(f"memory: {memory}, mean return of 20 held-out episodes: {report.evaluations[-1]['return']:.0f} of 500")
