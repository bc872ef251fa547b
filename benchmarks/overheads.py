"""What a step costs for checks that are over, a trace that is off and several agents; and what importing Stretto costs.

Run it with: python benchmarks/overheads.py
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import timeit
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from machine import describe, load_warning

import stretto
from stretto.adapters.agents import as_agents
from stretto.adapters.blocks import as_env
from stretto.games.foundry import Foundry

NUM_ENVS = 256
ROUNDS = 41
MOST_STEP_MICROSECONDS = 0.15
MOST_IMPORT_SECONDS = 0.3
HEAVY = ("torch", "ray", "matplotlib", "pettingzoo")

IMPORT = f"""
import sys, time
import numpy, gymnasium
began = time.perf_counter()
import stretto
print(time.perf_counter() - began, *(name for name in {HEAVY!r} if name in sys.modules))
"""


class Nothing(gymnasium.Env[Any, Any]):
    """A world that does nothing, so that what is around it shows."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._result = np.zeros(4, np.float32), 0.0, False, False, {}  # type: ignore[var-annotated]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._result[0], {}

    def step(self, action: Any) -> Any:
        return self._result


def checks_microseconds() -> tuple[float, float]:
    """Return what `checks="first"` costs an environment's step once it is over, and its spread between rounds.

    The difference to `checks="off"`, both measured in turn: pairs that are next to each other in time.
    """
    actions = np.zeros(NUM_ENVS, np.int64)
    with (
        stretto.make_vec(Nothing, NUM_ENVS, backend="serial", checks="off") as without,
        stretto.make_vec(Nothing, NUM_ENVS, backend="serial", checks="first") as with_checks,
    ):
        both = (without, with_checks)
        for envs in both:
            envs.reset(seed=0)
            for _ in range(100):
                envs.step(actions)
        differences = []
        gc.disable()
        for number in range(ROUNDS):
            took = {}
            for envs in both if number % 2 else both[::-1]:
                took[envs] = min(timeit.repeat(lambda envs=envs: envs.step(actions), number=20, repeat=5)) / 20
            differences.append((took[with_checks] - took[without]) / NUM_ENVS * 1e6)
        gc.enable()
    quarter = len(differences) // 4
    ordered = sorted(differences)
    return median(differences), (ordered[-quarter - 1] - ordered[quarter]) / 2


class Nobody:
    """A parallel environment, or a game in turns, that does nothing: agents see what those of Foundry see."""

    render_mode = None
    metadata: dict[str, Any] = {}  # noqa: RUF012  as PettingZoo spells it

    def __init__(self, agents: int) -> None:
        game = Foundry(agents)
        self.possible_agents = self.agents = game.possible_agents
        self.observation_space, self.action_space = game.observation_space, game.action_space
        game.reset(seed=0)
        self._seen = {agent: game.observe(agent) for agent in self.agents}
        self._infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self._end = game.end_turn()
        self._given = self._seen, self._end.rewards, self._end.terminated, self._end.truncated, self._infos

    def close(self) -> None:
        pass


class NobodyAtOnce(Nobody):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._seen, self._infos

    def step(self, actions: Any) -> Any:
        return self._given


class NobodyInTurns(Nobody):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        pass

    def begin_turn(self) -> None:
        pass

    def can_act(self, agent: str) -> bool:
        return True

    def observe(self, agent: str) -> Any:
        return self._seen[agent]

    def act(self, agent: str, action: Any) -> None:
        pass

    def end_turn(self) -> Any:
        return self._end

    def render(self) -> None:
        pass


def agents_microseconds(kind: type[Nobody], agents: int) -> tuple[float, float]:
    """Return what a step costs by agent, as evaluations have it, and laid out in blocks, as vector environments do."""
    world, env = as_agents(kind(agents)), as_env(kind(agents))
    actions, blocks = dict.fromkeys(world.spec().agents, 0), (np.zeros(agents, np.int64),)
    world.reset(0)
    env.reset(seed=0)
    steps = (lambda: world.step(actions)), (lambda: env.step(blocks))
    by_agent, laid_out = (min(timeit.repeat(step, number=500, repeat=60)) / 500 * 1e6 for step in steps)
    return by_agent, laid_out


def trace_microseconds() -> float:
    """Return what a trace that is off costs a step of all environments: the statements that ask for it, alone.

    One in `VectorEnv.step`, and for each worker one where it is asked and one where it answers; here, one worker.
    """
    setup = "from stretto import trace; words = memoryview(bytearray(64)).cast('q')"
    asked = "tracing = trace.active\nbegan = 0 if tracing is None else 1\nif tracing is not None: pass\n"
    asked += "words[3] = trace.active is not None\nbegan = 1 if words[3] else 0\nif began: pass"
    number = 100_000
    return min(timeit.repeat(asked, setup, number=number, repeat=15)) / number * 1e6


def import_seconds(repeat: int = 9) -> tuple[float, set[str]]:
    """Return how long `import stretto` takes after numpy and gymnasium, and which heavy packages came with it."""
    took, heavy = [], set()
    for _ in range(repeat):
        told = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True).stdout.split()
        took.append(float(told[0]))
        heavy |= set(told[1:])
    return median(took), heavy


def verdict(met: bool) -> str:
    """Return the word for it."""
    return "met   " if met else "MISSED"


def main() -> None:
    """Measure and print all of it."""
    began = time.monotonic()
    print(describe("stretto", "gymnasium", "numpy"))
    if (warning := load_warning()) is not None:
        print(f"note: {warning}")
    checks, spread = checks_microseconds()
    traced = trace_microseconds()
    together = max(checks, 0.0) + traced
    print("\na step of one environment                               µs")
    print(f'checks="first" after its first steps ({NUM_ENVS} envs)  {checks:8.3f} ± {spread:.3f}')
    print(f"an idle trace, if there is one environment        {traced:8.3f}")
    print(f"an idle trace, if there are 64                    {traced / 64:8.3f}")
    print(f"{verdict(together < MOST_STEP_MICROSECONDS)} together {together:.3f} < {MOST_STEP_MICROSECONDS} µs")
    print("\na step of one environment with several agents     by agent   in blocks, µs")
    for kind, told in ((NobodyAtOnce, "a parallel environment"), (NobodyInTurns, "a game in turns")):
        for agents in (4, 8):
            by_agent, laid_out = agents_microseconds(kind, agents)
            print(f"{told} of {agents} that does nothing".ljust(48), f"{by_agent:9.1f} {laid_out:11.1f}")
    print()
    seconds, heavy = import_seconds()
    print(
        f"{verdict(seconds < MOST_IMPORT_SECONDS)} import stretto takes {seconds:.3f} s beyond numpy and gymnasium, "
        f"< {MOST_IMPORT_SECONDS} s"
    )
    print(f"{verdict(not heavy)} it imports none of {', '.join(HEAVY)}" + (f", but {heavy}" if heavy else ""))
    print(f"({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
