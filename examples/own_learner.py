"""A learner of one's own: a torch module, a loss, and four methods. Every agent of the world gets one."""

import sys

import numpy as np
import torch
from torch import nn

import stretto


class Reinforce:
    """Plain policy gradients: actions are made likelier by the rewards that followed them."""

    def __init__(self, observation_space, action_space, seed, hidden=32):
        generator = torch.Generator().manual_seed(seed)
        self.network = nn.Sequential(
            nn.Linear(observation_space.shape[0], hidden), nn.Tanh(), nn.Linear(hidden, int(action_space.n))
        )
        for parameter in self.network.parameters():
            nn.init.uniform_(parameter, -0.3, 0.3, generator=generator)
        self.optimizer = torch.optim.Adam(self.network.parameters(), 1e-2)

    def act(self, observations, numbers):
        with torch.no_grad():
            chances = torch.softmax(self.network(torch.from_numpy(observations)), -1).numpy()
        return (chances.cumsum(-1) < numbers).sum(-1).clip(0, chances.shape[-1] - 1)

    def learn(self, seen):
        returns = np.zeros_like(seen.rewards)
        ahead = np.zeros(seen.rewards.shape[1])
        for row in range(len(returns) - 1, -1, -1):
            ahead = np.where(
                seen.acted[row], seen.rewards[row] + 0.98 * ahead, 0.0
            )  # an episode's last row: begin anew
            returns[row] = ahead
        returns = (returns - returns[seen.acted].mean()) / (returns[seen.acted].std() + 1e-8)
        acted = torch.from_numpy(seen.acted)
        logits = self.network(torch.from_numpy(seen.observations))[acted]
        chosen = torch.from_numpy(seen.actions)[acted]
        loss = (nn.functional.cross_entropy(logits, chosen, reduction="none") * torch.from_numpy(returns)[acted]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}

    def state_dict(self):
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    report = stretto.train("CartPole-v1", Reinforce, steps=steps, num_envs=16, config={"own": {"rows": 64}})
    for agent, result in report.agents.items():
        print(f"{agent}: mean return {result.mean_return:.0f} after {result.updates} updates")
