"""Sequential turns, computed one after the other, ahead of time, and in whichever way is faster.

    python benchmarks/turns.py [--agents 4 8 24 64] [--policies cheap costly batched block] [--rounds 3] [--turns 200]

Foundry's caves (40 by 40 cells). `cheap` draws actions; `costly` waits 0.3 ms for each and runs in threads; `batched` is a
recurrent network that draws, asked by `step_batch`; `block` is one with weights of its own for each agent, in a collection
with four environments. Rounds are interleaved, and figures are medians: of the time by the clock for `costly`, of the time
that the process computed for the others. All three ways must give the same results, to the bit. The bars: with 24 agents
`speculative` is at least twice as fast as `sequential` with a costly or batched policy; `auto` takes at most 1/0.95 of the
better one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from machine import describe

import stretto
from stretto.core import AgentPolicy, BlockAnswer, BlockPolicy, MultiAgentPolicy, WorldSpec

WAYS = ("sequential", "speculative", "auto")
MISSION, ENVS = "foundry_5", 4
WIDTH, WAIT_SECONDS = 64, 3e-4
INPUTS = 7 * 11 * 11 + 7
"""What a cog of Foundry observes, as one row of numbers."""


class Waiting(AgentPolicy):
    """Waits for each action, as one does that asks a server."""

    stateless = True

    def step(self, observation: Any) -> int:
        time.sleep(WAIT_SECONDS)
        return int(self.rng.integers(8))


def _weights(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32) / np.float32(np.sqrt(shape[-2]))


class _Agent(AgentPolicy):
    def __init__(self) -> None:
        self.hidden = np.zeros(WIDTH, np.float32)

    def snapshot(self) -> Any:
        return self.hidden

    def restore(self, snapshot: Any) -> None:
        self.hidden = snapshot


class Batched(MultiAgentPolicy):
    """A recurrent network for all agents, which draws from its logits."""

    def __init__(self, world: WorldSpec) -> None:
        super().__init__(world)
        rng = np.random.default_rng(0)
        self._seen, self._kept = _weights(rng, INPUTS, WIDTH), _weights(rng, WIDTH, WIDTH)
        self._out = _weights(rng, WIDTH, 8)

    def agent_policy(self, agent: str) -> AgentPolicy:
        return _Agent()

    def step_batch(self, agent_policies: Any, observations: Any) -> list[int]:
        seen = np.stack([np.concatenate([one["planes"].reshape(-1) / 255, one["self"]]) for one in observations])
        hidden = np.tanh(
            seen.astype(np.float32) @ self._seen + np.stack([one.hidden for one in agent_policies]) @ self._kept
        )
        logits = hidden @ self._out
        for policy, row in zip(agent_policies, hidden, strict=True):
            policy.hidden = row
        return [
            int(np.argmax(row + policy.rng.gumbel(size=8))) for policy, row in zip(agent_policies, logits, strict=True)
        ]


class Blocks(BlockPolicy):
    """The same with weights of its own for each agent."""

    def __init__(self, world: WorldSpec) -> None:
        super().__init__(world)
        rng, count = np.random.default_rng(0), len(world.agents)
        self._seen, self._kept = _weights(rng, count, INPUTS, WIDTH), _weights(rng, count, WIDTH, WIDTH)
        self._out = _weights(rng, count, WIDTH, 8)

    def initial_state(self) -> Any:
        return np.zeros(WIDTH, np.float32)

    def step_block(self, observations: Any, states: Any, choices: Any) -> BlockAnswer:
        planes = observations["planes"]
        seen = np.concatenate([planes.reshape(*planes.shape[:2], -1) / 255, observations["self"]], axis=2)
        hidden = np.tanh(seen.astype(np.float32) @ self._seen + states @ self._kept)
        drawn = -np.log(-np.log(np.maximum(choices.uniform(8), 1e-300)))
        return BlockAnswer(np.argmax(hidden @ self._out + drawn, axis=2), hidden)


def evaluated(policy: Any, strategy: str, agents: int, way: str, turns: int) -> tuple[float, str, dict[str, float]]:
    """Return the seconds of a turn in an evaluation, what it gave, and how agents were asked."""
    clock = time.perf_counter if policy is Waiting else time.process_time
    began = clock()
    report = stretto.evaluate(
        MISSION, policy, cogs=agents, episodes=2, steps=agents * turns, turns=way, strategy=strategy, jobs=0
    )
    seconds = clock() - began
    assert not any(record.failure for record in report.records)
    same = json.dumps([replace(record, timing={}).as_json() for record in report.records])
    timing = report.summary.by_mission[0].timing
    return seconds / (2 * turns), same, dict(timing)


def collected(agents: int, way: str, turns: int) -> tuple[float, str, dict[str, float]]:
    """Return the same of a collection by blocks."""
    options: dict[str, Any] = {"cogs": agents, "turns": way, "num_envs": ENVS, "act_rows": ENVS, "wait": "lockstep"}
    with stretto.open_collection(
        MISSION, Blocks, max_steps=agents * turns, backend="serial", check_reuse=False, **options
    ) as collection:
        began = time.process_time()
        rollouts = collection.collect(ENVS)
        seconds = time.process_time() - began
        stage = collection._way._stage  # type: ignore[union-attr]  # noqa: SLF001  nobody else wants to know
    return seconds / (ENVS * turns), rollouts.digest(), stage.counted._asdict()


POLICIES: dict[str, Callable[[int, str, int], tuple[float, str, dict[str, float]]]] = {
    "cheap": lambda *asked: evaluated("random", "sequential", *asked),
    "costly": lambda *asked: evaluated(Waiting, "threads", *asked),
    "batched": lambda *asked: evaluated(Batched, "batched", *asked),
    "block": collected,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[4, 8, 24, 64])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=200)
    asked = parser.parse_args()
    print(describe("numpy"))
    print(
        "| policy | agents | rounds a turn | conflicts a turn | sequential, ms a turn | speculative | auto | of the better |"
    )
    print("|---|---|---|---|---|---|---|---|")
    missed = 0
    for policy in asked.policies:
        for agents in asked.agents:
            found: dict[str, list[float]] = {way: [] for way in WAYS}
            results, counts = set(), {}
            for _ in range(asked.rounds):
                for way in WAYS:
                    seconds, same, counted = POLICIES[policy](agents, way, asked.turns)
                    found[way].append(seconds)
                    results.add(same)
                    if way == "speculative":
                        counts = counted
            assert len(results) == 1, f"{policy} with {agents} agents: the ways give other results"
            times = {way: median(each) for way, each in found.items()}
            gain = times["sequential"] / times["speculative"]
            kept = min(times["sequential"], times["speculative"]) / times["auto"]
            missed += kept < 0.95 or (agents == 24 and policy != "cheap" and gain < 2)
            per_turn = [counts[name] / counts["turns"] for name in ("rounds", "conflicts")]
            print(
                f"| {policy} | {agents} | {per_turn[0]:.1f} | {per_turn[1]:.1f} | {1000 * times['sequential']:.2f} | "
                f"{gain:.2f} times | {times['sequential'] / times['auto']:.2f} times | {kept:.2f} |",
                flush=True,
            )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
