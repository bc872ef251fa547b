"""Whole calls of `evaluate` beside a plain loop: python benchmarks/evaluation_calls.py [--rounds 5] [--only NAME]

A plain loop makes world and policy once, plays as many episodes, and adds up rewards. Rounds are interleaved. `of the plain
loop` is the median of the quotients of single rounds: by the clock, and by the time that all our processes computed, which
other programs change little. With two jobs, two idle cores could reach twice that quotient. `µs beyond` is what a step
and agent takes more than in the plain loop, by computing time. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import OtherPrograms, describe

import stretto
from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec
from stretto.games.foundry import MISSIONS, Foundry
from stretto.policies.agent_reset import reset_policy
from stretto.policies.loading import load_policy
from stretto.policies.spec import PolicySpec
from stretto.workers.launcher import launcher

LEAST_BEYOND = 10.0
"""How many microseconds a step and agent may take beyond world and policy."""


def lean(observation: Any) -> int:
    """Push the cart to where the pole leans and goes."""
    return int(observation[2] + observation[3] > 0)


def plain_cartpole(policy: Callable[[Any], int], episodes: int) -> int:
    env, steps = gymnasium.make("CartPole-v1"), 0
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            total, over, steps = total + float(reward), terminated or truncated, steps + 1
    env.close()
    return steps


def plain_foundry(episodes: int) -> int:
    world = Foundry(**MISSIONS["foundry_1"]["kwargs"])
    spec = WorldSpec(
        tuple(world.possible_agents),
        {agent: world.observation_space(agent) for agent in world.possible_agents},
        {agent: world.action_space(agent) for agent in world.possible_agents},
    )
    policy, steps = load_policy(PolicySpec.of("random"), spec), 0
    for seed in range(episodes):
        world.reset(seed)
        players = {agent: policy.agent_policy(agent) for agent in world.agents}
        for number, player in enumerate(players.values()):
            reset_policy(player, np.random.default_rng([seed, number]))
        totals = dict.fromkeys(world.agents, 0.0)
        while world.agents:
            world.begin_turn()
            actions = {a: players[a].step(world.observe(a)) for a in world.agents if world.can_act(a)}
            for agent, action in actions.items():
                if world.can_act(agent):
                    world.act(agent, action)
            for agent, reward in world.end_turn().rewards.items():
                totals[agent] += reward
            steps += len(actions)
    return steps


class Small(MultiAgentPolicy):
    """A network of two layers of 64 that draws its actions, one agent at a time. It pushes to where the pole leans."""

    def __init__(self, world: WorldSpec) -> None:
        import torch

        super().__init__(world)
        draw, linear = torch.Generator().manual_seed(0), torch.nn.Linear
        self.net = torch.nn.Sequential(linear(4, 64), torch.nn.Tanh(), linear(64, 64), torch.nn.Tanh(), linear(64, 2))
        with torch.no_grad():
            for part in self.net.parameters():
                part.copy_(torch.randn(part.shape, generator=draw) * 0.01)
            first, second, last = (self.net[i].weight for i in (0, 2, 4))
            first[0] = torch.tensor([0.0, 0.0, 3.0, 3.0])
            second[0, 0], last[0, 0], last[1, 0] = 3.0, -9.0, 9.0

    def chosen(self, observations: Any, draws: Any) -> list[int]:
        import torch

        with torch.no_grad():
            chances = torch.softmax(self.net(torch.as_tensor(observations)), -1)
            drawn = torch.as_tensor(draws) > chances[:, 0]
            return [int(one) for one in drawn.tolist()]

    def agent_policy(self, agent: str) -> AgentPolicy:
        return _Choosing(self)


class _Choosing(AgentPolicy):
    def __init__(self, team: Small) -> None:
        self.team = team

    def step(self, observation: Any) -> int:
        return self.team.chosen(observation[None], [self.rng.random()])[0]


class SmallTogether(Small):
    """The same, for many agents at once."""

    def step_batch(self, agents: Any, observations: Any) -> list[int]:
        return self.chosen(np.stack(observations), [agent.rng.random() for agent in agents])


def ours(mission: str, policy: Any, agents: int, episodes: int, jobs: int) -> int:
    report = stretto.evaluate(mission, policy, episodes=episodes, jobs=jobs)
    return agents * sum(record.steps for record in report.records)


@dataclass(frozen=True)
class Race:
    """A call beside what it is measured against: how fast it must be, and whether all is computed in this process.

    If it is, computing time decides; else the clock does.
    """

    name: str
    plain: Callable[[], int]
    ours: Callable[[], int]
    bar: float
    here: bool = True
    beyond: bool = True


def races(quick: bool) -> list[Race]:
    few = 10 if quick else 1
    cartpole, foundry = partial(plain_cartpole, lean), plain_foundry
    lean_call = partial(ours, "gym:CartPole-v1", lean, 1)
    random_call = partial(ours, "foundry_1", "random", 4)
    short, long, turns = 300 // few, 3000 // few, 700 // few
    found = [
        Race(f"CartPole, {short} episodes, jobs 0", partial(cartpole, short), partial(lean_call, short, 0), 0.5),
        Race(
            f"CartPole, {long} episodes, jobs 2", partial(cartpole, long), partial(lean_call, long, 2), 1.0, here=False
        ),
        Race(
            f"Foundry, random, {turns} episodes, jobs 0", partial(foundry, turns), partial(random_call, turns, 0), 0.7
        ),
        Race(
            f"Foundry, random, {turns} episodes, jobs 2",
            partial(foundry, turns),
            partial(random_call, turns, 2),
            1.2,
            here=False,
        ),
    ]
    network = 96 // few
    one_by_one, together = (partial(ours, "gym:CartPole-v1", kind, 1, network, 0) for kind in (Small, SmallTogether))
    found.append(Race(f"a small network, {network} episodes, one by one", one_by_one, together, 8.0, beyond=False))
    return found


def computed() -> float:
    """Return for how long this process has computed, and the workers that it has had."""
    pid = launcher().pid
    return time.process_time() + (0.0 if pid is None else sum(psutil.Process(pid).cpu_times()[:4]))


def run(race: Race, rounds: int) -> bool:
    """Race, print a row, and say whether the bar is met."""
    clocks: list[float] = []
    quotients: list[float] = []
    beyond: list[float] = []
    others, before, since = OtherPrograms([]), computed(), time.perf_counter()
    for number in range(rounds + 1):
        took = []
        for way in (race.plain, race.ours) if number % 2 else (race.ours, race.plain):
            began, busy = time.perf_counter(), computed()
            steps = way()
            took.append(((time.perf_counter() - began) / steps, (computed() - busy) / steps))
        (plain, plain_busy), (own, own_busy) = took if number % 2 else took[::-1]
        if number:  # the first round warms up
            clocks.append(plain / own)
            quotients.append(plain_busy / own_busy)
            beyond.append((own_busy - plain_busy) * 1e6)
    more = f"{median(beyond):.1f}" if race.beyond else ""
    away = max(0.0, others.cores() - (computed() - before) / (time.perf_counter() - since))
    figures = f"{median(clocks):.2f} | {median(quotients):.2f} | {more} | {race.bar:g} | {away:.1f}"
    print(f"| {race.name} | {figures} |", flush=True)
    met = median(quotients if race.here else clocks) >= race.bar
    return met and not (more and median(beyond) > LEAST_BEYOND)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="what has this in its name")
    parser.add_argument("--quick", action="store_true", help="a tenth of the episodes, for a look")
    arguments = parser.parse_args()
    print(f"{describe('stretto', 'numpy', 'torch')}; {arguments.rounds} rounds, interleaved\n")
    print("| call | of the plain loop, by the clock | by computing time | µs beyond | bar | others' cores |")
    print("|---|---:|---:|---:|---:|---:|")
    chosen = [race for race in races(arguments.quick) if arguments.only in race.name]
    met = [run(race, arguments.rounds) for race in chosen]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
