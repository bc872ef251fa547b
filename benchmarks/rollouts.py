"""What a rollout costs beyond its worlds and policies: microseconds of computing a step and agent.

    python benchmarks/rollouts.py [--rounds 5]

The same episodes, by a plain loop over the user's own world, by `evaluate`, and by the rollout itself with worlds in
place and behind a vector environment. Rounds are interleaved; each figure is a median of the time that the process
computed, which other programs do not count in.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium

import stretto
from stretto.adapters.agents import as_agents
from stretto.adapters.local import LocalWorlds
from stretto.collection.collector import Collector, Trials
from stretto.collection.worlds import BlockWorlds
from stretto.core import AgentWorlds
from stretto.episode_steps import EpisodePlan
from stretto.games.foundry import Foundry
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.runners import InPlace
from stretto.policies.spec import PolicySpec
from stretto.rollout import rollout

SLOTS, EPISODES, COGS, FOUNDRY_STEPS = 16, 200, 8, 200


def lean(observation: Any) -> int:
    """Push the cart to where the pole leans."""
    return int(observation[2] > 0)


def stay(_: Any) -> int:
    """Do nothing."""
    return 0


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def plain_cartpole() -> int:
    env, steps = cartpole(), 0
    for seed in range(EPISODES):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            observation, _, terminated, truncated, _ = env.step(lean(observation))
            over, steps = terminated or truncated, steps + 1
    env.close()
    return steps


def plain_foundry() -> int:
    world, steps = Foundry(COGS), 0
    for seed in range(4):
        world.reset(seed)
        for _ in range(FOUNDRY_STEPS):
            world.begin_turn()
            for agent in [agent for agent in world.agents if world.can_act(agent)]:
                world.observe(agent)
                steps += 1
            for agent in world.agents:
                world.act(agent, stay(None))
            world.end_turn()
    return steps


def evaluated(mission: str, policy: Callable[[Any], int], episodes: int, agents: int, **kwargs: Any) -> int:
    report = stretto.evaluate(mission, policy, episodes=episodes, jobs=0, **kwargs)
    return agents * sum(record.steps for record in report.records)


def rolled_out(worlds: AgentWorlds, policy: Callable[[Any], int], episodes: int, max_steps: int | None = None) -> int:
    runner = InPlace([PolicyPlan(PolicySpec.of(policy))], worlds.spec, batched=False)
    plans = [EpisodePlan(number, number, dict.fromkeys(worlds.spec.agents, 0)) for number in range(episodes)]
    steps = 0
    for moment in rollout(worlds, runner, plans, max_steps=max_steps):
        for one in moment:
            steps += len(one.actions)
    worlds.close()
    return steps


def here(make: Callable[[], Any], count: int) -> AgentWorlds:
    return LocalWorlds(lambda _: as_agents(make()), count)


def collected(make: Callable[[], Any], slots: int, policy: Callable[[Any], int], rollouts: int) -> int:
    worlds = BlockWorlds(stretto.make_vec(make, slots, backend="serial", copy=False))
    runner = InPlace([PolicyPlan(PolicySpec.of(policy))], worlds.spec, batched=False)
    with Collector(worlds, runner, dict.fromkeys(worlds.spec.agents, 0)) as collector:
        return sum(int(kind.acted.sum()) for one in collector.rollouts(rollouts, Trials(0)) for kind in one.kinds)


WAYS: dict[str, dict[str, Callable[[], int]]] = {
    "CartPole, a policy of one line": {
        "plain loop": plain_cartpole,
        "evaluate": lambda: evaluated("gym:CartPole-v1", lean, EPISODES, 1),
        "rollout in place": lambda: rolled_out(here(cartpole, SLOTS), lean, EPISODES),
        "collected in blocks": lambda: collected(cartpole, SLOTS, lean, EPISODES),
    },
    f"Foundry, {COGS} agents that do nothing": {
        "plain loop": plain_foundry,
        "evaluate": lambda: evaluated("foundry_1", stay, 4, COGS, cogs=COGS, steps=FOUNDRY_STEPS),
        "rollout in place": lambda: rolled_out(here(lambda: Foundry(COGS), 4), stay, 4, FOUNDRY_STEPS),
    },
}


def microseconds(way: Callable[[], int]) -> float:
    """How long a step of an agent takes."""
    began = time.process_time()
    steps = way()
    return (time.process_time() - began) / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print("| worlds and policy | way | µs a step and agent | beyond the plain loop |")
    print("|---|---|---:|---:|")
    for name, ways in WAYS.items():
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds + 1):  # the first one warms up
            for way, run in ways.items():
                found = microseconds(run)
                if number:
                    taken[way].append(found)
        least = median(taken["plain loop"])
        for way, found_in_rounds in taken.items():
            print(f"| {name} | {way} | {median(found_in_rounds):.1f} | {median(found_in_rounds) - least:.1f} |")


if __name__ == "__main__":
    main()
