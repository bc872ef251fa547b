"""Whole commands of cogames and ours beside each other: python benchmarks/cogames.py

Needs cogames; the environment of `make test-worlds` has it. Each round runs the commands in turn, with start-up: `cogames
eval`, and ours with one and with two jobs, on the same episodes. The table has medians over the rounds: seconds by the clock,
seconds of computing in all processes, and the most memory that they held at once (shared pages counted once). Where a policy
draws nothing, rewards and statistics are compared. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from machine import describe

BIN = Path(sys.executable).parent
SEED = 42
BARS = {1: 3.0, 2: 5.0}
"""How many times as fast as `cogames eval` a command has to be, by its jobs."""

RAW_BAR = 8.0

RAW_POLICY = '''
import numpy as np
from mettagrid.policy.policy import AgentPolicy, MultiAgentPolicy
from mettagrid.types import Action


class Raw(MultiAgentPolicy):
    """A linear policy on mettagrid's arrays. Asked by itself, an agent writes its tokens into such an array."""

    def __init__(self, policy_env_info, device="cpu"):
        super().__init__(policy_env_info)
        size = int(np.prod(policy_env_info.observation_shape))
        shape = size, len(policy_env_info.action_names)
        self.weights = np.random.default_rng(0).integers(-8, 8, shape).astype(np.float32)

    def choose(self, seen):
        return (seen.reshape(len(seen), -1).astype(np.float32) @ self.weights).argmax(axis=1)

    def step_batch(self, raw_observations, raw_actions):
        raw_actions[:] = self.choose(raw_observations)

    def agent_policy(self, agent_id):
        return Agent(self)


class Agent(AgentPolicy):
    def __init__(self, shared):
        super().__init__(shared.policy_env_info)
        self.shared = shared

    def step(self, obs):
        seen = np.full((1, *self.policy_env_info.observation_shape), 255, np.uint8)
        for row, token in enumerate(obs.tokens):
            seen[0, row] = token.raw_token
        return Action(name=self.policy_env_info.action_names[int(self.shared.choose(seen)[0])])
'''
"""Sums of whole numbers below 2**24 are exact in single precision: the shape of a batch changes no action."""


@dataclass
class Run:
    """What one command took, and what it printed."""

    seconds: float
    computed: float
    megabytes: float
    printed: Any


def measured(words: Sequence[str], folder: Path) -> Run:
    """Run a command; look at the memory of all its processes twenty times a second."""
    before, began = os.times(), time.perf_counter()
    with (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, cwd=folder, text=True)
        most, done = [0.0], threading.Event()
        watcher = threading.Thread(target=watch, args=(process.pid, most, done))
        watcher.start()
        printed, _ = process.communicate()
        seconds = time.perf_counter() - began
        done.set()
        watcher.join()
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(words)}\n{errors.read()}")
    after = os.times()
    computed = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(seconds, computed, most[0], json.loads(printed))


def watch(pid: int, most: list[float], done: threading.Event) -> None:
    while not done.wait(0.05):
        try:
            processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            held = sum(one.memory_full_info().pss for one in processes) / 1e6
        except psutil.Error:
            continue
        most[0] = max(most[0], held)


def of_theirs(printed: Any) -> dict[str, Any]:
    """Return rewards by episode, and means of statistics over episodes, as cogames prints them."""
    (mission,) = printed["missions"]
    summary = mission["mission_summary"]
    found = {f"game.{name}": value for name, value in summary["avg_game_stats"].items()}
    found |= {f"mean.{name}": value for name, value in summary["avg_time_averaged_game_stats"].items()}
    # cogames divides sums over all episodes by the number of agents alone.
    agents = summary["policy_summaries"][0]["avg_agent_metrics"]
    found |= {f"agent.{name}": value / summary["episodes"] for name, value in agents.items()}
    rewards = [
        one[0] for _, one in sorted(summary["per_episode_per_policy_avg_rewards"].items(), key=lambda e: int(e[0]))
    ]
    return {"rewards": rewards, **found}


def of_ours(printed: Any) -> dict[str, Any]:
    """Return the same of our report."""
    episodes = printed["episodes"]
    names = {name for one in episodes for name in one["statistics"]}
    found = {name: sum(one["statistics"].get(name, 0.0) for one in episodes) / len(episodes) for name in names}
    rewards = [sum(one["rewards"].values()) / len(one["rewards"]) for one in episodes]
    return {"rewards": rewards, **found}


def different(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Return the names of what differs: rewards to the bit, means of statistics by more than the order of a sum."""
    wrong = [] if theirs["rewards"] == ours["rewards"] else ["rewards"]
    for name, value in theirs.items():
        if name != "rewards" and abs(ours.get(name, 0.0) - value) > 1e-12 * max(1.0, abs(value)):
            wrong.append(name)
    return wrong


def commands(policy: str, raw: str, episodes: int, steps: int) -> dict[str, list[str]]:
    common = ["-m", "machina_1", "--cogs", "4", "--steps", str(steps), "--format", "json"]
    theirs = "class=raw_policy.Raw" if policy == "raw" else policy
    ours = raw if policy == "raw" else policy
    seeds = ",".join(str(SEED + number) for number in range(episodes))
    return {
        # A late action would be another one, on a busy machine.
        "cogames eval": [
            str(BIN / "cogames"), "eval", *common, "-p", theirs, "-e", str(episodes), "--seed", str(SEED),
            "--action-timeout-ms", "60000",
        ],
        **{
            f"stretto eval, jobs {jobs}": [
                str(BIN / "stretto"), "eval", *common, "-p", ours, "--episode-seeds", seeds, "--jobs", str(jobs), "--quiet"
            ]
            for jobs in BARS
        },
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Whole commands of cogames and ours beside each other.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--policies", nargs="+", default=["random", "starter", "raw"])
    arguments = parser.parse_args()
    print(describe("cogames", "mettagrid", "stretto", "numpy"))
    print(
        f"machina_1, 4 cogs, {arguments.steps} steps, medians of {arguments.rounds} rounds; times as fast as cogames eval"
    )
    missed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "raw_policy.py").write_text(RAW_POLICY)
        for policy in arguments.policies:
            for episodes in arguments.episodes:
                missed |= compare(policy, episodes, arguments.steps, arguments.rounds, folder)
    return int(missed)


def compare(policy: str, episodes: int, steps: int, rounds: int, folder: Path) -> bool:
    """Print the table of a policy; return whether a bar is missed."""
    runs: dict[str, list[Run]] = {}
    for _ in range(rounds):
        for what, words in commands(policy, f"{folder}/raw_policy.py:Raw", episodes, steps).items():
            runs.setdefault(what, []).append(measured(words, folder))
    theirs, *others = runs
    print(f"\n{policy}, {episodes} episodes")
    missed, base = False, runs[theirs]
    for what, done in runs.items():
        faster = median(a.seconds / b.seconds for a, b in zip(base, done, strict=True))
        cheaper = median(a.computed / b.computed for a, b in zip(base, done, strict=True))
        seconds, computed, memory = (
            median(getattr(one, n) for one in done) for n in ("seconds", "computed", "megabytes")
        )
        line = f"  {what:22} {seconds:7.2f} s {faster:5.2f} x  computed {computed:7.2f} s {cheaper:5.2f} x  {memory:5.0f} MB"
        if what in others:
            bar = RAW_BAR if policy == "raw" else BARS[int(what.rpartition(" ")[2])]
            missed |= faster < bar
            wrong = [] if policy == "random" else different(of_theirs(base[0].printed), of_ours(done[0].printed))
            missed |= bool(wrong)
            line += f"   bar {bar:g}{'' if faster >= bar else ' MISSED'}{f'   DIFFERENT: {wrong[:3]}' if wrong else ''}"
        print(line, flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
