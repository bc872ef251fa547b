"""Independent PPO without stacking: plain torch modules with a fused Adam, an agent after the other, in a plain loop.

What can be done for all agents at once without stacking their networks is done at once: observations are written into one
array, which is turned into numbers once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from worlds import foundry_1, simple_spread

from stretto.interop.pettingzoo import ParallelTurns

DISCOUNT, SMOOTHING, CLIP, VALUE_WEIGHT, MOST_GRADIENT = 0.99, 0.95, 0.2, 0.5, 0.5


class PlainAgent:
    """An actor, a critic and what optimizes them."""

    def __init__(self, width: int, actions: int, settings: Any) -> None:
        self._actor, self._critic = _network(width, actions, settings.hidden), _network(width, 1, settings.hidden)
        self._parameters = [*self._actor.parameters(), *self._critic.parameters()]
        self._optimizer = torch.optim.Adam(self._parameters, settings.learning_rate, fused=True)
        self._settings = settings

    @torch.no_grad()
    def act(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions, and how likely they were."""
        logarithms = torch.log_softmax(self._actor(seen), -1)
        actions = torch.multinomial(logarithms.exp(), 1)
        return actions[:, 0], logarithms.gather(-1, actions)[:, 0]

    @torch.no_grad()
    def values(self, seen: Tensor) -> Tensor:
        """Return what the critic expects."""
        values: Tensor = self._critic(seen)[..., 0]
        return values

    def learn(self, seen: Tensor, actions: Tensor, likelihoods: Tensor, gained: Tensor, returns: Tensor) -> None:
        """Learn from rows, in shuffled batches."""
        for _ in range(self._settings.epochs):
            for rows in torch.randperm(len(seen)).split(self._settings.batch):
                self._update(*(one[rows] for one in (seen, actions, likelihoods, gained, returns)))

    def _update(self, seen: Tensor, actions: Tensor, before: Tensor, gained: Tensor, returns: Tensor) -> None:
        gained = (gained - gained.mean()) / (gained.std() + 1e-8)
        logarithms = torch.log_softmax(self._actor(seen), -1)
        ratio = (logarithms.gather(-1, actions[:, None])[:, 0] - before).exp()
        entropy = -(logarithms.exp() * logarithms).sum(-1)
        policy_loss = -torch.min(ratio * gained, ratio.clamp(1 - CLIP, 1 + CLIP) * gained)
        wrong = self._critic(seen)[:, 0] - returns
        loss = (policy_loss + VALUE_WEIGHT * wrong * wrong - self._settings.entropy * entropy).mean()
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, MOST_GRADIENT)
        self._optimizer.step()


def _network(width: int, outputs: int, hidden: int) -> nn.Module:
    layers = nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    return nn.Sequential(*layers)


class PlainWorlds:
    """Worlds that are stepped one after the other; what all agents see lies in one array. They end for all at once."""

    def __init__(self, envs: Sequence[Any]) -> None:
        self._envs = envs
        self._agents = envs[0].possible_agents
        self.actions = int(envs[0].action_space(self._agents[0]).n)
        self._make_room(envs[0].observation_space(self._agents[0]), (len(self._agents), len(envs)))
        for number, env in enumerate(self._envs):
            self._see(number, env.reset(seed=number)[0])

    def _make_room(self, space: Any, shape: tuple[int, int]) -> None:
        self.width = space.shape[0]
        self._seen = np.zeros((*shape, self.width), np.float32)

    def _see(self, env: int, seen: dict[str, Any]) -> None:
        for number, agent in enumerate(self._agents):
            self._seen[number, env] = seen[agent]

    def rows(self) -> Tensor:
        """Return what is seen now, as (agents, environments, numbers)."""
        return torch.from_numpy(self._seen)

    def step(self, actions: list[list[int]], rewards: Any) -> tuple[Any, dict[int, Tensor]]:
        """Step all, and write rewards of (agents, environments); return which ended, and what they had last seen."""
        ended, last = np.zeros(len(self._envs), np.bool_), {}
        for number, env in enumerate(self._envs):
            seen, gained, _, truncated, _ = env.step(
                {agent: actions[i][number] for i, agent in enumerate(self._agents)}
            )
            self._see(number, seen)
            rewards[:, number] = [gained[agent] for agent in self._agents]
            if truncated[self._agents[0]]:
                ended[number], last[number] = True, self.rows()[:, number].clone()
                self._see(number, env.reset()[0])
        return ended, last


class PlainFoundries(PlainWorlds):
    """Foundries: planes of bytes are turned into numbers for all of them at once."""

    def _make_room(self, space: Any, shape: tuple[int, int]) -> None:
        self._planes = np.zeros((*shape, *space["planes"].shape), np.uint8)
        self._own = np.zeros((*shape, *space["self"].shape), np.float32)
        self._pixels = int(np.prod(space["planes"].shape))
        self.width = self._pixels + self._own.shape[-1]

    def _see(self, env: int, seen: dict[str, Any]) -> None:
        for number, agent in enumerate(self._agents):
            self._planes[number, env] = seen[agent]["planes"]
            self._own[number, env] = seen[agent]["self"]

    def rows(self) -> Tensor:
        rows = torch.empty(*self._own.shape[:2], self.width)
        rows[..., : self._pixels] = torch.from_numpy(self._planes).flatten(2)
        rows[..., : self._pixels] /= 255
        rows[..., self._pixels :] = torch.from_numpy(self._own)
        return rows


def plain_worlds(world: str, agents: int, count: int) -> PlainWorlds:
    """Return so many worlds of a kind."""
    if world == "foundry_1":
        return PlainFoundries([ParallelTurns(foundry_1(agents)) for _ in range(count)])
    return PlainWorlds([simple_spread(agents) for _ in range(count)])


def plain(agents: int, settings: Any, after_epoch: Callable[[int], None], threads: int = 1) -> None:
    """Collect and learn, epoch by epoch, with so many threads a computation."""
    torch.set_num_threads(threads)
    torch.manual_seed(settings.seed)
    worlds, rows, envs = plain_worlds(settings.world, agents, settings.envs), settings.rows, settings.envs
    learners = [PlainAgent(worlds.width, worlds.actions, settings) for _ in range(agents)]
    seen = torch.zeros(rows + 1, agents, envs, worlds.width)
    actions = torch.zeros(rows, agents, envs, dtype=torch.int64)
    likelihoods, rewards = torch.zeros(rows, agents, envs), np.zeros((rows, agents, envs), np.float32)
    for epoch in range(settings.intervals):
        ends = np.zeros((rows, envs), np.bool_)
        for row in range(rows):
            seen[row] = worlds.rows()
            for agent, learner in enumerate(learners):
                actions[row, agent], likelihoods[row, agent] = learner.act(seen[row, agent])
            ends[row], last = worlds.step(actions[row].tolist(), rewards[row])
            for env, ahead in last.items():
                for agent, learner in enumerate(learners):
                    rewards[row, agent, env] += DISCOUNT * float(learner.values(ahead[agent]))
        seen[rows] = worlds.rows()
        for agent, learner in enumerate(learners):
            mine = seen[:, agent]
            values = learner.values(mine).numpy()
            gained = _advantages(values, rewards[:, agent], ends)
            known = (actions[:, agent], likelihoods[:, agent], torch.from_numpy(gained))
            learner.learn(*(one.flatten(0, 1) for one in (mine[:rows], *known, torch.from_numpy(gained + values[:-1]))))
        after_epoch((epoch + 1) * rows * envs)


def _advantages(values: Any, rewards: Any, ends: Any) -> Any:
    found, later = np.zeros_like(rewards), np.zeros_like(rewards[0])
    for row in range(len(rewards) - 1, -1, -1):
        goes_on = ~ends[row]
        wrong = rewards[row] + DISCOUNT * values[row + 1] * goes_on - values[row]
        found[row] = later = wrong + DISCOUNT * SMOOTHING * goes_on * later
    return found
