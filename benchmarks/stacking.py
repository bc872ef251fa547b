"""What stacking is worth: independent agents updated and asked in one block, against plain torch modules one by one.

    python benchmarks/stacking.py [--rounds 21] [--agents 2,8,32]

Two layers of 64, four numbers seen, two actions, an actor and a critic for each agent. An update is a whole one of PPO:
both networks, the clipped objective, gradients, their limit, and Adam. The plain modules have torch's fused Adam. Rounds
are interleaved; a figure is the median of the time that the process computed, which other programs do not count in.
Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median, quantiles

import numpy as np
import torch
from gymnasium import spaces
from machine import describe
from torch import nn

from stretto.budget import NativeThreads
from stretto.policies.networks.heads import head_of
from stretto.policies.networks.network import Network, NetworkSettings
from stretto.seeding import SeedTree
from stretto.training.allocator import keep_freed_memory
from stretto.training.learners.ppo_objective import Batch, ClippedObjective, Experience
from stretto.training.learners.ppo_settings import PpoSettings
from stretto.training.optimizer import Adam

SEEN, ACTIONS, HIDDEN = spaces.Box(-1, 1, (4,)), spaces.Discrete(2), 64
BATCHES, ACT_ROWS = (32, 64, 256), (1, 16)
LEAST = {("update", 32): 5.0, ("update", 64): 3.5, ("update", 256): 2.0, ("act", 1): 5.0, ("act", 16): 3.0}
"""How many times faster a block of 8 agents must be."""

NEVER_BELOW = 0.95


class Data:
    """A minibatch of every agent."""

    def __init__(self, agents: int, rows: int) -> None:
        draw = np.random.default_rng(0)
        self.seen = draw.standard_normal((agents, rows, 4)).astype(np.float32)
        self.actions = torch.from_numpy(draw.integers(0, 2, (agents, rows)))
        self.likelihoods = torch.full((agents, rows), -0.69)
        self.advantages = torch.from_numpy(draw.standard_normal((agents, rows)).astype(np.float32))
        self.returns = torch.from_numpy(draw.standard_normal((agents, rows)).astype(np.float32))


class Stacked:
    """Ours: blocks of eight agents."""

    def __init__(self, agents: int, rows: int) -> None:
        data, self._blocks = Data(agents, rows), []
        for begin in range(0, agents, 8):
            some = slice(begin, begin + 8)
            head = head_of(ACTIONS)
            trees = [SeedTree(0).child(number) for number in range(agents)[some]]
            network = Network(trees, SEEN, (head.width, 1), NetworkSettings((HIDDEN, HIDDEN)), (0.01, 1.0))
            seen = network.inputs.rows(data.seen[some])
            known = (data.likelihoods, data.advantages, data.returns, data.returns)
            experience = Experience(seen, data.actions[some], None, *(one[some] for one in known))
            batch = Batch(experience, torch.full((len(trees), rows), 1 / rows))
            objective = ClippedObjective(network, head, PpoSettings(), 0.01)
            optimizer = Adam(network.parameters, most_gradient=0.5)
            self._blocks.append((network, seen, batch, objective, optimizer))

    def update(self) -> None:
        for network, _, batch, objective, optimizer in self._blocks:
            objective.differentiate(batch, figures=False)
            agents = network.agents
            optimizer.step([3e-4] * agents, optimizer.norms().numpy(), np.ones(agents, bool))

    def act(self) -> None:
        with torch.no_grad():
            for network, seen, *_ in self._blocks:
                network.tower(seen, 0)


class OneByOne:
    """Plain modules, an actor, a critic and an optimizer for each agent."""

    def __init__(self, agents: int, rows: int) -> None:
        self._data, self._agents = Data(agents, rows), []
        self._seen = torch.from_numpy(self._data.seen)
        for _ in range(agents):
            actor, critic = _plain(2), _plain(1)
            parameters = [*actor.parameters(), *critic.parameters()]
            self._agents.append((actor, critic, parameters, torch.optim.Adam(parameters, 3e-4, fused=True)))

    def update(self) -> None:
        data = self._data
        for agent, (actor, critic, parameters, optimizer) in enumerate(self._agents):
            seen, gained = self._seen[agent], data.advantages[agent]
            logarithms = torch.log_softmax(actor(seen), -1)
            likelihoods = logarithms.gather(-1, data.actions[agent][:, None])[:, 0]
            entropy = -(logarithms.exp() * logarithms).sum(-1)
            ratio = (likelihoods - data.likelihoods[agent]).exp()
            policy_loss = -torch.min(ratio * gained, ratio.clamp(0.8, 1.2) * gained)
            wrong = critic(seen)[:, 0] - data.returns[agent]
            loss = (policy_loss + 0.5 * wrong * wrong - 0.01 * entropy).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()

    def act(self) -> None:
        with torch.no_grad():
            for agent, (actor, *_) in enumerate(self._agents):
                actor(self._seen[agent])


def _plain(outputs: int) -> nn.Module:
    layers = nn.Linear(4, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs)
    return nn.Sequential(*layers)


def race(ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> tuple[float, list[float]]:
    """Return the microseconds of one of ours, and by round how many times slower theirs were."""
    calls = [_calls(function) for function in (ours, theirs)]
    ours_seconds, ratios = [], []
    for _ in range(rounds):
        mine, other = (_seconds(function, count) for function, count in zip((ours, theirs), calls, strict=True))
        ours_seconds.append(mine)
        ratios.append(other / mine)
    return median(ours_seconds) * 1e6, ratios


def _calls(function: Callable[[], None]) -> int:
    for _ in range(5):
        function()
    return max(1, int(0.05 / _seconds(function, 3)))


def _seconds(function: Callable[[], None], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        function()
    return (time.process_time() - began) / count


def main() -> None:
    """Measure, print the table, and say which bars were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--agents", default="1,2,8,32", help="how many agents, separated by commas")
    given = parser.parse_args()
    NativeThreads(1).cap_for_good()
    keep_freed_memory()  # as runs do
    print(describe("torch", "numpy"))
    print("\n| | agents | rows | ours, µs | times one by one |\n|---|---:|---:|---:|---:|")
    missed = []
    for agents in map(int, given.agents.split(",")):
        for what, rows in [("update", rows) for rows in BATCHES] + [("act", rows) for rows in ACT_ROWS]:
            ours, theirs = Stacked(agents, rows), OneByOne(agents, rows)
            micros, ratios = race(getattr(ours, what), getattr(theirs, what), given.rounds)
            low, _, high = quantiles(ratios, n=4)
            print(
                f"| {what} | {agents} | {rows} | {micros:,.0f} | {median(ratios):.2f} [{low:.2f}, {high:.2f}] |",
                flush=True,
            )
            least = LEAST[what, rows] if agents == 8 else NEVER_BELOW
            if median(ratios) < least:
                missed.append(f"{what} of {rows} rows, {agents} agents: {median(ratios):.2f}, the bar is {least:g}")
    print("\n" + ("\n".join(missed) or "Every bar is met."))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
