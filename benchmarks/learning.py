"""PPO beside Stable-Baselines3's: what is learned, how many steps it takes, and how long.

    python benchmarks/learning.py [--world CartPole-v1] [--seeds 5] [--speed-only]

"equal": both have the same settings and budget of steps. "best": each has the best settings that are known for it. The two
take turns, seed by seed, each in a process of its own. Every so many steps the policy plays 20 held-out episodes, always
with its likeliest actions; the time for that does not count. At the end it plays 100 others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any

import gymnasium
import numpy as np
from machine import describe, load_warning

THRESHOLDS = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0, "LunarLander-v3": 200.0, "Pendulum-v1": -300.0}
BUDGETS = {"CartPole-v1": 150_000, "Acrobot-v1": 300_000, "LunarLander-v3": 600_000, "Pendulum-v1": 400_000}
LOOK_EVERY, LOOKS, FINAL = 5_000, 20, 100

EQUAL = {
    "batch 64, 10 epochs": {"envs": 64, "rows": 32, "batch": 64, "epochs": 10},
    "batch 256, 4 epochs": {"envs": 64, "rows": 32, "batch": 256, "epochs": 4},
}
LEAST_SPEED = {"batch 64, 10 epochs": 1.8, "batch 256, 4 epochs": 1.5}
SPEED_STEPS = {"batch 64, 10 epochs": 20_000, "batch 256, 4 epochs": 60_000}

# The peer's: those that its own collection of tuned settings has for these worlds.
BEST = {
    "CartPole-v1": {
        "sb3": {
            "envs": 8, "rows": 32, "batch": 256, "epochs": 20, "rate": 1e-3, "falls": True, "discount": 0.98,
            "smoothing": 0.8,
        },
        "stretto": {
            "envs": 16, "rows": 32, "batch": 128, "epochs": 10, "rate": 2e-3, "falls": True, "discount": 0.98,
            "smoothing": 0.8,
        },
    },
}  # fmt: skip
DEFAULTS = {"rate": 3e-4, "falls": False, "discount": 0.99, "smoothing": 0.95, "entropy": 0.0}

Act = Callable[[Any], Any]


def plays(world: str, act: Act, episodes: int, first_seed: int) -> list[float]:
    """Return the returns of some episodes, all played at once."""
    envs = gymnasium.make_vec(world, episodes, vectorization_mode="sync")
    seen, _ = envs.reset(seed=[first_seed + number for number in range(episodes)])
    returns, going = np.zeros(episodes), np.ones(episodes, bool)
    while going.any():
        seen, rewards, terminated, truncated, _ = envs.step(act(seen))
        returns += rewards * going
        going &= ~(terminated | truncated)
    envs.close()
    return returns.tolist()


class Course:
    """The way of one run: how long it took without the looks at it, and what these showed."""

    def __init__(self, world: str, act: Act, threshold: float | None) -> None:
        self._world, self._act, self._threshold = world, act, threshold
        self._began, self._away, self._next = time.perf_counter(), 0.0, LOOK_EVERY
        self.reached: tuple[int, float] | None = None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began - self._away

    def look(self, steps: int) -> None:
        """See how good the policy is by now, if it is time to."""
        if self._threshold is None or self.reached is not None or steps < self._next:
            return
        began, seconds = time.perf_counter(), self.seconds
        if np.mean(plays(self._world, self._act, LOOKS, 1_000_000)) >= self._threshold:
            self.reached = steps, seconds
        self._next += LOOK_EVERY
        self._away += time.perf_counter() - began

    def outcome(self, steps: int) -> dict[str, Any]:
        seconds = self.seconds
        final = [] if self._threshold is None else plays(self._world, self._act, FINAL, 2_000_000)
        return {"steps": steps, "seconds": seconds, "reached": self.reached, "final": final}


def stretto_run(world: str, settings: Mapping[str, Any], seed: int, steps: int, threshold: float | None) -> Any:
    import torch

    import stretto
    from stretto.collection.collector import Trials
    from stretto.collection.worlds import BlockWorlds
    from stretto.policies.networks.policies import ActorPolicy
    from stretto.training.blocks import learner_blocks
    from stretto.training.learners.ppo import Ppo
    from stretto.training.learners.ppo_settings import PpoSettings
    from stretto.training.loop import SyncLoop
    from stretto.training.schedules import Schedule
    from stretto.training.sets import LearnerSet
    from stretto.workers.backends import SERIAL

    torch.set_num_threads(1)
    envs = stretto.make_vec(world, settings["envs"], copy=False)
    worlds = BlockWorlds(envs)
    ppo = PpoSettings(
        rows=settings["rows"],
        batch=settings["batch"],
        epochs=settings["epochs"],
        learning_rate=Schedule(settings["rate"], 0.0 if settings["falls"] else None),
        discount=settings["discount"],
        smoothing=settings["smoothing"],
        entropy=Schedule(settings["entropy"]),
    )
    blocks = learner_blocks(worlds.kinds, seed, worlds.count)
    learners = LearnerSet(lambda number: Ppo(blocks[number], ppo), len(blocks), SERIAL)
    policy = learners.learners[0].policy
    assert isinstance(policy, ActorPolicy)

    def act(seen: Any) -> Any:
        with torch.no_grad():
            rows = policy.network.inputs.rows(seen[None])
            outputs = policy.network.tower(rows, 0)
            return policy.head.bounded(policy.head.choose(outputs, policy.network.scales, None, None))[0]

    loop = SyncLoop(worlds, learners, Trials(seed), ppo.rows, steps)
    course = Course(world, act, threshold)
    for interval in loop:
        course.look(interval.steps)
    outcome = course.outcome(loop.steps)
    loop.close()
    return outcome


def sb3_run(world: str, settings: Mapping[str, Any], seed: int, steps: int, threshold: float | None) -> Any:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    rate, falls = settings["rate"], settings["falls"]
    model = PPO(
        "MlpPolicy",
        make_vec_env(world, settings["envs"], seed=seed),
        n_steps=settings["rows"],
        batch_size=settings["batch"],
        n_epochs=settings["epochs"],
        learning_rate=(lambda left: left * rate) if falls else rate,
        gamma=settings["discount"],
        gae_lambda=settings["smoothing"],
        ent_coef=settings["entropy"],
        seed=seed,
        device="cpu",
    )
    course = Course(world, lambda seen: model.predict(seen, deterministic=True)[0], threshold)

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            course.look(self.num_timesteps)

    model.learn(steps, callback=Look())
    return course.outcome(model.num_timesteps)


RUNS = {"stretto": stretto_run, "sb3": sb3_run}


def run_apart(who: str, world: str, settings: Mapping[str, Any], seed: int, steps: int, look: bool) -> dict[str, Any]:
    """Run one of them in a process of its own."""
    task = json.dumps([who, world, {**DEFAULTS, **settings}, seed, steps, THRESHOLDS[world] if look else None])
    done = subprocess.run([sys.executable, __file__, "--task", task], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def spread(numbers: list[float], form: str = ",.0f") -> str:
    if len(numbers) < 2:
        return format(numbers[0], form) if numbers else "-"
    low, _, high = quantiles(numbers, n=4)
    return f"{median(numbers):{form}} [{low:{form}}, {high:{form}}]"


def compare_speed(world: str, rounds: int) -> list[str]:
    """Print steps a second with equal settings; return which bars were missed."""
    print("\n| equal settings | Stretto, steps/s | SB3, steps/s | ratio |\n|---|---:|---:|---:|")
    missed = []
    for name, settings in EQUAL.items():
        rates: dict[str, list[float]] = {who: [] for who in RUNS}
        for seed in range(rounds):
            for who in list(RUNS)[:: 1 if seed % 2 else -1]:
                found = run_apart(who, world, settings, seed, SPEED_STEPS[name], look=False)
                rates[who].append(found["steps"] / found["seconds"])
        ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
        print(f"| {name} | {spread(rates['stretto'])} | {spread(rates['sb3'])} | {spread(ratios, '.2f')} |", flush=True)
        if median(ratios) < LEAST_SPEED[name]:
            missed.append(f"{name}: {median(ratios):.2f} times SB3's speed, the bar is {LEAST_SPEED[name]}")
    return missed


def compare_learning(world: str, seeds: int) -> list[str]:
    """Print what both learn; return which bars were missed."""
    print(
        "\n| settings | who | final mean, by seed | steps to the threshold | seconds to it |\n|---|---|---|---:|---:|"
    )
    kinds = {"equal, batch 64": dict.fromkeys(RUNS, EQUAL["batch 64, 10 epochs"])}
    if world in BEST:
        kinds["best"] = BEST[world]
    missed = []
    for name, chosen in kinds.items():
        found: dict[str, list[dict[str, Any]]] = {who: [] for who in RUNS}
        for seed in range(seeds):
            for who in RUNS:
                found[who].append(run_apart(who, world, chosen[who], seed, BUDGETS[world], look=True))
        seconds = {}
        for who, runs in found.items():
            finals = ", ".join(f"{np.mean(one['final']):.0f}" for one in runs)
            reached = [one["reached"] for one in runs if one["reached"]]
            seconds[who] = [one[1] for one in reached]
            steps = spread([float(one[0]) for one in reached])
            print(f"| {name} | {who} | {finals} | {steps} | {spread(seconds[who], '.1f')} |", flush=True)
        if name == "best" and all(seconds.values()):
            ratio = median(seconds["stretto"]) / median(seconds["sb3"])
            if ratio > 1 / 3:
                missed.append(f"wall time to the threshold: {ratio:.2f} of SB3's, the bar is a third")
    return missed


def main() -> None:
    """Run the comparison, and say which bars were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", default="CartPole-v1", choices=list(THRESHOLDS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        who, *task = json.loads(given.task)
        print(json.dumps(RUNS[who](*task)))
        return
    print(describe("stretto", "stable_baselines3", "torch", "gymnasium"))
    print(load_warning() or "")
    missed = compare_speed(given.world, given.seeds)
    if not given.speed_only:
        missed += compare_learning(given.world, given.seeds)
    print("\n" + ("\n".join(missed) or "Every bar is met."))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
