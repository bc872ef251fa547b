"""A game of one's own in which players take turns, two policies for it, and which of them is better."""

import numpy as np
from gymnasium import spaces

import stretto

HEAPS = np.array([3, 5, 7])


class Nim:
    """Players in turn take any number from one heap; whoever takes the last one wins. A `stretto.TurnWorld`."""

    possible_agents = ("first", "second")
    render_mode = None

    def __init__(self):
        self.metadata, self.agents = {"name": "nim"}, []

    def observation_space(self, agent):
        return spaces.MultiDiscrete(HEAPS + 1)

    def action_space(self, agent):
        return spaces.MultiDiscrete([len(HEAPS), HEAPS.max() + 1])

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.heaps = self.random.integers(1, HEAPS + 1)
        self.agents, self.turn, self.winner = list(self.possible_agents), -1, None

    def begin_turn(self):
        self.turn += 1

    def can_act(self, agent):
        return agent == self.agents[self.turn % 2]

    def observe(self, agent):
        return self.heaps.copy()

    def act(self, agent, action):
        heap, number = (int(part) for part in action)
        if self.heaps[heap] == 0:  # a player that errs takes one from the largest heap
            heap, number = int(self.heaps.argmax()), 1
        self.heaps[heap] -= min(max(1, number), self.heaps[heap])
        if not self.heaps.any():
            self.winner = agent

    def end_turn(self):
        over, here = self.winner is not None, self.agents
        rewards = {agent: 0.0 if not over else 1.0 if agent == self.winner else -1.0 for agent in here}
        if over:
            self.agents = []
        return stretto.TurnEnd(rewards, dict.fromkeys(here, over), dict.fromkeys(here, False), {a: {} for a in here})

    def render(self):
        return None

    def close(self):
        pass


class Greedy(stretto.AgentPolicy):
    """Takes the largest heap."""

    def step(self, heaps):
        return int(np.argmax(heaps)), int(np.max(heaps))


class Expert(stretto.AgentPolicy):
    """Leaves heaps whose sizes cancel out in binary, whenever it can."""

    def step(self, heaps):
        whole = int(np.bitwise_xor.reduce(heaps))
        for i, size in enumerate(heaps):
            if size ^ whole < size:
                return i, int(size - (size ^ whole))
        return int(np.argmax(heaps)), 1


report = stretto.evaluate(Nim, [Expert, Greedy], mix=True, episodes=40)
wins = {"Expert": 0, "Greedy": 0}
for record in report.records:
    winner = max(record.rewards, key=lambda agent: record.rewards[agent])
    wins[record.policies[winner]] += 1
print("games won:", wins)
