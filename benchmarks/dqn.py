"""DQN beside Stable-Baselines3's, with the same settings and the same budget: what is learned, and how fast.

    python benchmarks/dqn.py [--world CartPole-v1] [--seeds 5] [--speed-only]

The two take turns, seed by seed, each in a process of its own. Steps a second are counted by the time on a core
(`time.process_time`), in runs in which nobody looks. Otherwise the policy plays 20 held-out episodes every 5,000 steps, and
100 others at the end, always with the best actions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
from learning import THRESHOLDS, Course, spread
from machine import describe, load_warning

BUDGETS = {"CartPole-v1": 50_000, "Acrobot-v1": 100_000, "LunarLander-v3": 200_000}
SPEED_STEPS = 6_000

# The same for both; tuned for neither. Both copy the target network about every COPY_STEPS steps.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "rows": 32, "updates": 128, "batch": 64, "rate": 2.3e-3, "starts": 1_000, "widths": [256, 256], "epsilon": 0.04,
        "explores": 0.16, "discount": 0.99,
    },
    "Acrobot-v1": {
        "rows": 1, "updates": 8, "batch": 128, "rate": 6.3e-4, "starts": 1_000, "widths": [256, 256], "epsilon": 0.1,
        "explores": 0.12, "discount": 0.99,
    },
    "LunarLander-v3": {
        "rows": 1, "updates": 8, "batch": 128, "rate": 6.3e-4, "starts": 1_000, "widths": [256, 256], "epsilon": 0.1,
        "explores": 0.12, "discount": 0.99,
    },
}  # fmt: skip
ENVS, BUFFER, COPY_STEPS = 8, 50_000, 256


def stretto_run(world: str, settings: dict[str, Any], seed: int, steps: int, threshold: float | None) -> dict[str, Any]:
    import torch

    import stretto
    from stretto.collection.collector import Trials
    from stretto.collection.worlds import BlockWorlds
    from stretto.policies.networks.values import ValueNetworkSettings
    from stretto.training.blocks import learner_blocks
    from stretto.training.learners.dqn import Dqn
    from stretto.training.learners.dqn_settings import DqnSettings
    from stretto.training.loop import SyncLoop
    from stretto.training.schedules import Schedule
    from stretto.training.sets import LearnerSet
    from stretto.workers.backends import SERIAL

    torch.set_num_threads(1)
    dqn = DqnSettings(
        rows=settings["rows"],
        updates=settings["updates"],
        batch=settings["batch"],
        buffer=BUFFER,
        learning_starts=settings["starts"],
        learning_rate=Schedule(settings["rate"]),
        discount=settings["discount"],
        epsilon=Schedule(1.0, settings["epsilon"], settings["explores"]),
        target_interval=max(settings["updates"], COPY_STEPS * settings["updates"] // (settings["rows"] * ENVS)),
        double=False,
        network=ValueNetworkSettings(tuple(settings["widths"])),
    )
    worlds = BlockWorlds(stretto.make_vec(world, ENVS, backend="serial", copy=False))
    blocks = learner_blocks(worlds.kinds, seed, worlds.count)
    learners = LearnerSet(lambda number: Dqn(blocks[number], dqn), len(blocks), SERIAL)
    policy: Any = learners.learners[0].policy

    def act(seen: Any) -> Any:
        policy.greedy = True
        chosen = policy.step_block(seen[None], None, None).actions[0]
        policy.greedy = False
        return chosen

    loop = SyncLoop(worlds, learners, Trials(seed), dqn.rows, steps)
    course, began = Course(world, act, threshold), time.process_time()
    for interval in loop:
        course.look(interval.steps)
    cpu = time.process_time() - began
    outcome = course.outcome(loop.steps)
    loop.close()
    return outcome | {"cpu": cpu}


def sb3_run(world: str, settings: dict[str, Any], seed: int, steps: int, threshold: float | None) -> dict[str, Any]:
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    model = DQN(
        "MlpPolicy",
        make_vec_env(world, ENVS, seed=seed),
        train_freq=settings["rows"],
        gradient_steps=settings["updates"],
        batch_size=settings["batch"],
        buffer_size=BUFFER,
        learning_starts=settings["starts"],
        learning_rate=settings["rate"],
        gamma=settings["discount"],
        exploration_fraction=settings["explores"],
        exploration_final_eps=settings["epsilon"],
        target_update_interval=COPY_STEPS,
        policy_kwargs={"net_arch": settings["widths"]},
        seed=seed,
        device="cpu",
    )
    course = Course(world, lambda seen: model.predict(seen, deterministic=True)[0], threshold)

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            course.look(self.num_timesteps)

    began = time.process_time()
    model.learn(steps, callback=Look())
    cpu = time.process_time() - began
    return course.outcome(model.num_timesteps) | {"cpu": cpu}


RUNS = {"Stretto": stretto_run, "SB3": sb3_run}


def run_apart(who: str, world: str, seed: int, steps: int, threshold: float | None) -> dict[str, Any]:
    """Run one of them in a process of its own."""
    task = json.dumps([who, world, SETTINGS[world], seed, steps, threshold])
    done = subprocess.run([sys.executable, __file__, "--task", task], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=SETTINGS, default="CartPole-v1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        who, *rest = json.loads(arguments.task)
        print(json.dumps(RUNS[who](*rest)))
        return
    print(describe(), load_warning(), sep="\n")
    world, seeds = arguments.world, range(arguments.seeds)
    speeds: dict[str, list[float]] = {who: [] for who in RUNS}
    for seed in seeds:
        for who, found in speeds.items():
            one = run_apart(who, world, seed, SPEED_STEPS, None)
            found.append(one["steps"] / one["cpu"])
    print("\n| | steps a second of a core |\n|---|---:|")
    for who, found in speeds.items():
        print(f"| {who} | {spread(found)} |")
    if arguments.speed_only:
        return
    print("\n| | return at the end, by seed | seeds at the threshold | steps to the threshold |\n|---|---:|---:|---:|")
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in RUNS}
    for seed in seeds:
        for who, done in runs.items():
            done.append(run_apart(who, world, seed, BUDGETS[world], THRESHOLDS[world]))
    for who, done in runs.items():
        finals = [float(np.mean(one["final"])) for one in done]
        there = sum(final >= THRESHOLDS[world] for final in finals)
        reached = [one["reached"][0] for one in done if one["reached"] is not None]
        print(
            f"| {who} | {', '.join(f'{final:.0f}' for final in finals)} | {there} of {len(done)} | {spread(reached)} |"
        )


if __name__ == "__main__":
    main()
