"""Where agents choose, and what that costs and gains: python benchmarks/evaluation.py

Rounds are interleaved: in each, every strategy plays the same steps once. The tables have medians over the rounds. Exits
with 1 if a bar is missed. Needs otherwise idle cores; --quick is for a look.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gymnasium import spaces

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import describe

from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec
from stretto.evaluation.evaluate import evaluate
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import AgentEpisode, Question, Runner
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import Adaptive, make_runner
from stretto.seeding import SeedTree

OBSERVATION_BYTES = 1024


class Busy(MultiAgentPolicy):
    """Computes for a while."""

    def __init__(self, world: WorldSpec, seconds: float = 0.005) -> None:
        super().__init__(world)
        self.seconds = seconds

    class Agent(AgentPolicy):
        seconds = 0.0

        def step(self, observation: Any) -> int:
            until = time.thread_time() + self.seconds
            while time.thread_time() < until:
                pass
            return 0

    def agent_policy(self, agent: str) -> AgentPolicy:
        made = self.Agent()
        made.seconds = self.seconds
        return made


class Asleep(Busy):
    """Waits for a while."""

    class Agent(AgentPolicy):
        seconds = 0.0

        def step(self, observation: Any) -> int:
            time.sleep(self.seconds)
            return 0


def spec_of(agents: int, size: int = OBSERVATION_BYTES) -> WorldSpec:
    names = tuple(f"agent_{i}" for i in range(agents))
    seen, done = spaces.Box(-1, 1, (size // 4,), np.float32), spaces.Discrete(4)
    return WorldSpec(names, dict.fromkeys(names, seen), dict.fromkeys(names, done))


class Steps:
    """Steps of a runner, as a rollout makes them."""

    def __init__(self, policy: PolicySpec, world: WorldSpec, strategy: str, cores: int, rows: int = 0) -> None:
        self.runner: Runner = make_runner(
            [PolicyPlan(policy, frozenset(), rows)], world, [strategy], cores, takes_part=True
        )
        self._world = world
        self._episode = 0
        draw = np.random.default_rng(0)
        self._seen = {a: draw.random(world.observation_spaces[a].shape, np.float32) for a in world.agents}
        self.begin()

    def begin(self) -> None:
        if self._episode:
            self.runner.end(self._episode)
        self._episode += 1
        tree = SeedTree(self._episode)
        agents = enumerate(self._world.agents)
        self.runner.begin([AgentEpisode(self._episode, agent, 0, tree.child(agent), i) for i, agent in agents])

    def step(self) -> None:
        self.runner.ask([Question(self._episode, agent, 0, seen) for agent, seen in self._seen.items()])
        self.runner.replies()


@dataclass(frozen=True)
class Bar:
    """What a figure has to reach."""

    what: str
    figure: float
    limit: float
    at_most: bool

    @property
    def met(self) -> bool:
        return self.figure <= self.limit if self.at_most else self.figure >= self.limit

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"  {'met   ' if self.met else 'MISSED'} {self.figure:8.3g} {sign} {self.limit:g}  {self.what}"


def interleaved(contestants: dict[str, Callable[[], None]], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the seconds a step of each contestant, one figure a round."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):  # the first one warms up
        for name, step in contestants.items():
            began = time.perf_counter()
            for _ in range(steps):
                step()
            if number:
                seconds[name].append((time.perf_counter() - began) / steps)
    return seconds


def race(  # noqa: PLR0913  what is raced, and how often
    title: str,
    policy: PolicySpec,
    world: WorldSpec,
    strategies: Sequence[str],
    *,
    cores: int,
    rounds: int,
    steps: int,
    rows: int = 0,
) -> dict[str, list[float]]:
    made = {name: Steps(policy, world, name, cores, rows) for name in strategies}
    for one in made.values():  # let `adaptive` try each place for an episode, and choose
        for _ in range(4):
            for _ in range(3):
                one.step()
            one.begin()
    seconds = interleaved({name: one.step for name, one in made.items()}, rounds, steps)
    print(f"{title}: {len(world.agents)} agents, {cores} cores")
    for name, times in seconds.items():
        ratio = median(a / b for a, b in zip(seconds[strategies[0]], times, strict=True))
        runner = made[name].runner
        why = f"  ({runner.reason})" if isinstance(runner, Adaptive) else ""
        print(f"  {name:12}{median(times) * 1e6:12,.0f} µs a step   {ratio:6.2f} x {strategies[0]}{why}")
    for one in made.values():
        one.runner.close()
    return seconds


def ratio(slow: list[float], fast: list[float]) -> float:
    return median(a / b for a, b in zip(slow, fast, strict=True))


def over_best(seconds: dict[str, list[float]]) -> float:
    """How much slower `adaptive` is than the best of the others."""
    best = min((name for name in seconds if name != "adaptive"), key=lambda name: median(seconds[name]))
    return ratio(seconds["adaptive"], seconds[best])


def strategies(rounds: int) -> list[Bar]:
    every = ["sequential", "threads", "processes", "adaptive"]
    bars = []
    four = partial(race, world=spec_of(4), strategies=every, rounds=rounds)
    asleep = four("policies that sleep for 50 ms", PolicySpec("asleep", Asleep, {"seconds": 0.05}), cores=4, steps=2)
    bars += [
        Bar(f"ms a step of four that sleep for 50 ms, {name}", median(asleep[name]) * 1e3, 75, at_most=True)
        for name in ("processes", "threads")
    ]
    heavy = four("policies that compute for 5 ms", PolicySpec("busy", Busy, {"seconds": 0.005}), cores=2, steps=10)
    bars.append(
        Bar(
            "processes over sequential, 5 ms of CPU", ratio(heavy["sequential"], heavy["processes"]), 1.8, at_most=False
        )
    )
    cheap = four("policies that take no time", PolicySpec("busy", Busy, {"seconds": 0.0}), cores=2, steps=300)
    overhead = (median(cheap["processes"]) - median(cheap["sequential"])) * 1e6
    bars.append(Bar("µs that processes cost more, 4 agents, 1 kB each", overhead, 150, at_most=True))
    measured = {"sleeping": asleep, "heavy": heavy, "cheap": cheap}
    try:
        import torch  # noqa: F401  the network needs it
    except ImportError:
        print("no figure for networks: pip install torch==2.13.0")
    else:
        neural = race(
            "a small network",
            PolicySpec("neural", "stretto.policies.neural:Neural", {}),
            spec_of(16, 256),
            ["sequential", "batched", "adaptive"],
            cores=2,
            rounds=rounds,
            steps=20,
            rows=16,
        )
        bars += network(rounds)
        measured["batched"] = neural
    bars += [
        Bar(f"adaptive over the best, {name}", over_best(seconds), 1.05, at_most=True)
        for name, seconds in measured.items()
    ]
    return bars


def network(rounds: int) -> list[Bar]:
    """Compare one `step_batch` for 16 agents with 16 calls of `step`."""
    from stretto.policies.loading import reset_policy
    from stretto.policies.neural import Neural

    world = spec_of(16, 256)
    policy = Neural(world)
    agents: list[Any] = [policy.agent_policy(agent) for agent in world.agents]
    for i, agent in enumerate(agents):
        reset_policy(agent, np.random.default_rng(i))
    seen = [np.random.default_rng(i).random(64, np.float32) for i in range(16)]

    def one_by_one() -> None:
        for agent, observation in zip(agents, seen, strict=True):
            agent.step(observation)

    seconds = interleaved({"one by one": one_by_one, "batch": lambda: policy.step_batch(agents, seen)}, rounds, 50)
    return [
        Bar(
            "step_batch of 16 over 16 calls of step", ratio(seconds["one by one"], seconds["batch"]), 3.0, at_most=False
        )
    ]


def jobs(rounds: int) -> list[Bar]:
    """Compare one job with two, on 16 episodes."""
    busy = PolicySpec("busy", Busy, {"seconds": 0.005})
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for number, times in seconds.items():
            began = time.perf_counter()
            evaluate("gym:Acrobot-v1", busy, episodes=16, steps=60, jobs=number, strategy="sequential")
            times.append(time.perf_counter() - began)
    print(f"16 episodes of 60 steps: {median(seconds[1]):.2f} s with 1 job, {median(seconds[2]):.2f} s with 2")
    return [
        Bar("2 jobs over 1, 16 episodes with 5 ms of CPU a step", ratio(seconds[1], seconds[2]), 1.8, at_most=False)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else arguments.rounds
    print(f"{describe('stretto', 'numpy', 'torch')}; {rounds} rounds, interleaved\n")
    bars = strategies(rounds) + jobs(max(3, rounds // 3))
    print("\nWhat it must reach, on otherwise idle cores:")
    for bar in bars:
        print(bar)
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
