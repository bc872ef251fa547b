"""One update of SAC on one core: ours beside Stable-Baselines3's, and with a memory beside pomdp-baselines'.

    python benchmarks/sac_updates.py [--rounds 7] [--original FOLDER]

Without a memory: Pendulum's spaces, two layers of 256, batches of 256. With FOLDER, a checkout of pomdp-baselines (see
meta_training.py): HalfCheetahVel's spaces, a GRU of 128, three layers of 128, 32 trials of 400 steps. Rounds take turns; the
clock is that of a core, so other programs disturb it less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from machine import describe
from meta_training import BATCH, EPISODES, HIDDEN, HORIZON, load_original

from stretto.budget import NativeThreads
from stretto.policies.networks.soft_actors import SoftNetworkSettings
from stretto.seeding import SeedTree
from stretto.storage import Piece
from stretto.storage.of_layout import buffer_of
from stretto.training.learners.base import LearnerBlock
from stretto.training.learners.sac import Sac
from stretto.training.learners.sac_settings import SacSettings

UPDATES, TRIAL_UPDATES = 20, 1


def ours(seen: int, acts: int, lanes: int, settings: SacSettings) -> Callable[[int], Any]:
    """Return what does so many updates of one agent, with as many rows of random experience as there are in `rows`."""
    draw, rows = np.random.default_rng(0), settings.rows
    box = spaces.Box(-np.inf, np.inf, (seen,), np.float32)
    block = LearnerBlock(("a",), box, spaces.Box(-1, 1, (acts,), np.float32), (SeedTree(0),), lanes)
    learner = Sac(block, settings)
    buffer = buffer_of(learner.layout)
    never = np.zeros((rows, lanes, 1), np.bool_)

    def numbers(*shape: int) -> Any:
        return draw.standard_normal(shape).astype(np.float32)

    extras = {"memory": np.zeros((rows, lanes, 1, HIDDEN), np.float32)} if settings.network.memory else {}
    actions = np.clip(numbers(rows, lanes, 1, acts), -1, 1)
    rewards = numbers(rows, lanes, 1)
    buffer.extend(
        Piece(numbers(rows, lanes, 1, seen), actions, ~never, rewards, never, never, numbers(lanes, 1, seen), extras)
    )
    snapshot = buffer.snapshot()
    return lambda count: learner.learn_again(snapshot, count)


def sb3() -> Callable[[int], Any]:
    """Return what does so many updates as Stable-Baselines3 does."""
    from stable_baselines3 import SAC

    model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=400, seed=0, device="cpu")
    model.learn(400)
    return lambda count: model.train(count, 256)


def original(folder: str) -> Callable[[int], Any]:
    """Return what does so many updates as pomdp-baselines does."""
    make_agent, _ = load_original(folder)
    env = gymnasium.make("HalfCheetah-v5")
    seen, acts = env.observation_space.shape[0] + 1, env.action_space.shape[0]  # type: ignore[index]
    layers = [128, 128, 128]
    agent = make_agent(
        seen, acts, "gru", "sac", 16, 32, 16, HIDDEN, layers, layers, lr=3e-4, gamma=0.99, tau=0.005,
        sac={"entropy_alpha": 0.2, "automatic_entropy_tuning": True, "alpha_lr": 3e-4},
    )  # fmt: skip
    widths = {"act": acts, "rew": 1, "obs": seen, "obs2": seen}
    batch = {name: torch.randn(EPISODES * HORIZON, BATCH, width).clamp(-1, 1) for name, width in widths.items()}
    flags = EPISODES * HORIZON, BATCH, 1
    batch |= {"term": torch.zeros(flags), "mask": torch.ones(flags)}
    return lambda count: [agent.update(batch) for _ in range(count)]


def compare(name: str, first: Callable[[int], Any], other: Callable[[int], Any], updates: int, rounds: int) -> None:
    """Let both take turns; print the medians of an update, and of the quotient of a round."""
    first(1), other(1)
    took: list[list[float]] = []
    for number in range(rounds):
        row = [0.0, 0.0]
        for place in (0, 1)[:: 1 if number % 2 else -1]:
            began = time.process_time()
            (first, other)[place](updates)
            row[place] = (time.process_time() - began) / updates * 1e3
        took.append(row)
    mine, theirs = (median(row[place] for row in took) for place in (0, 1))
    ratios = sorted(row[1] / row[0] for row in took)
    print(
        f"| {name} | {mine:.1f} | {theirs:.1f} | {median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}] |", flush=True
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--original")
    given = parser.parse_args()
    print(describe("stretto", "stable_baselines3", "torch"))
    NativeThreads(1).cap_for_good()
    print("| update | ours, CPU ms | other, CPU ms | quotient [range] |\n|---|---:|---:|---:|")
    plain = SacSettings(rows=400, learning_starts=1, buffer=10_000)
    compare("without a memory, SB3", ours(3, 1, 1, plain), sb3(), UPDATES, given.rounds)
    if given.original is not None:
        rows = EPISODES * (HORIZON + 1)
        network = SoftNetworkSettings((128, 128, 128), memory="gru", memory_width=HIDDEN)
        trials = SacSettings(
            rows=rows, batch=BATCH * rows, chunk=rows, buffer=rows * BATCH * 2, learning_starts=1, network=network
        )
        compare(
            "with a GRU, pomdp-baselines",
            ours(19, 6, BATCH, trials),
            original(given.original),
            TRIAL_UPDATES,
            given.rounds,
        )


if __name__ == "__main__":
    main()
