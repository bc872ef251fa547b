"""Collecting and learning on HalfCheetahVel beside pomdp-baselines' own recurrent SAC: environment steps a second.

    python benchmarks/meta_training.py --original FOLDER [--rounds 3] [--rollouts 5] [--updates 40] [--threads 1]

FOLDER is a checkout of github.com/twni2016/pomdp-baselines. Its networks, its update and its buffer run as they are, with the
settings of configs/meta/cheetah_vel/rnn.yml. Its worlds need mujoco-py, so both play Gymnasium's HalfCheetah-v5 with our task
around it, and its collection is written here in the shape of its `Learner.collect_rollouts`: one world in this process, one
step after the other. A round is some rollouts of two episodes of 200 steps and some updates with 32 whole rollouts: by
default a fifth of its 25 rollouts and 200 updates. Rounds take turns. `--loop pipelined` lets ours overlap both.

Ours has one memory that the critics learn and the actor shares; the original has one for each of them, and embeddings.
"""

from __future__ import annotations

import argparse
import codecs
import collections
import collections.abc
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from machine import describe, load_warning

EPISODES, HORIZON, BATCH, HIDDEN = 2, 200, 32, 128
LEAST_RATIO = 3.0


def now() -> Any:
    """Return the time on the wall, and on a core."""
    return np.array([time.perf_counter(), time.process_time()])


# ---- ours ----


def ours(rollouts: int, updates: int, threads: int, loop: str) -> Iterator[int]:
    """Collect and learn; yield the steps of each round."""
    from stretto.budget import default_budget
    from stretto.collection.description import mission_of
    from stretto.collection.making import TrialSettings, worlds_and_trials
    from stretto.collection.tasks import rollout_tasks
    from stretto.training.config import config_of
    from stretto.training.run import Run
    from stretto.training.task_split import tasks_of

    rows = EPISODES * (HORIZON + 1)
    values = {
        "learner": "sac",
        "preset": None,
        "steps": 10**9,
        "num_envs": rollouts,
        "native_threads": threads,
        "loop": loop,
        "trials": {"episodes": EPISODES, "rewards": True, "boundaries": True},
        "sac": {
            "rows": rows,
            "updates": updates,
            "batch": BATCH * rows,
            "chunk": rows,
            "buffer": 1_000_000,
            "learning_starts": 1,
            "network": {"widths": [128, 128, 128], "memory": "gru", "memory_width": HIDDEN},
        },
    }
    mission = mission_of("half_cheetah_vel", {})
    config = config_of(mission.name, values)
    tasks = tasks_of(mission, config.trials, 0)
    assert tasks is not None
    shown = TrialSettings(0, EPISODES, None, "simultaneous", rollouts, False, True, True, False)
    make, trials = worlds_and_trials(mission, rollout_tasks(tasks[0]), shown, {}, check_reuse=False)
    with Run(make, trials, config, 0, default_budget(), {"backend": "serial"}) as run:
        steps = 0
        for interval in run:
            yield interval.steps - steps
            steps = interval.steps


# ---- the original ----


def load_original(folder: str) -> tuple[Any, Any]:
    """Import its agent and its buffer, which were written for older versions of Python and Gym."""
    sys.path.insert(0, folder)
    codecs.register(lambda name: codecs.lookup("utf-8") if name == "future_fstrings" else None)
    collections.Set = collections.abc.Set  # type: ignore[attr-defined]
    sys.modules["gym"], sys.modules["gym.spaces"] = gymnasium, gymnasium.spaces
    from buffers.seq_replay_buffer_vanilla import SeqReplayBuffer
    from policies.models.policy_rnn import ModelFreeOffPolicy_Separate_RNN
    from torchkit import pytorch_utils

    pytorch_utils.set_gpu_mode(False)
    return ModelFreeOffPolicy_Separate_RNN, SeqReplayBuffer


def original(folder: str, rollouts: int, updates: int, threads: int) -> Iterator[int]:
    """Collect and learn as it does; yield the steps of each round."""
    import torch

    from stretto.adapters.mujoco_tasks import MujocoTask

    make_agent, make_buffer = load_original(folder)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    env, draw = MujocoTask("half_cheetah_vel"), np.random.default_rng(0)
    seen_size, acts_size = env.observation_space.shape[0] + 1, env.action_space.shape[0]  # it shows the boundary, too
    layers = [128, 128, 128]
    agent = make_agent(
        seen_size, acts_size, "gru", "sac", 16, 32, 16, HIDDEN, layers, layers, lr=3e-4, gamma=0.99, tau=0.005,
        sac={"entropy_alpha": 0.2, "automatic_entropy_tuning": True, "alpha_lr": 3e-4},
    )  # fmt: skip
    buffer = make_buffer(1_000_000, seen_size, acts_size, EPISODES * HORIZON, 0.0)
    while True:
        for _ in range(rollouts):
            buffer.add_episode(*rollout_of(env, agent, env.draw_task(draw, "train")))
        for _ in range(updates):
            batch = buffer.random_episodes(BATCH)
            agent.update({name: torch.as_tensor(array, dtype=torch.float32) for name, array in batch.items()})
        yield rollouts * EPISODES * HORIZON


def rollout_of(env: Any, agent: Any, task: float) -> tuple[Any, ...]:
    """Play a trial with one call of the agent for each step; return its columns."""
    import torch

    def row(*numbers: Any) -> Any:
        return torch.as_tensor(np.concatenate([np.ravel(one) for one in numbers])[None], dtype=torch.float32)

    action, reward, memory = agent.get_initial_info()
    columns: list[list[Any]] = [[], [], [], [], []]
    for episode in range(EPISODES):
        seen = row(env.reset(options={"task": task})[0], episode > 0)
        over = False
        while not over:
            (action, *_), memory = agent.act(memory, action, reward, seen, deterministic=False)
            after, gained, terminated, truncated, _ = env.step(action.squeeze(0).numpy())
            over = terminated or truncated
            reward, follows = row(gained), row(after, 0.0)
            for column, part in zip(columns, (seen, action, reward, row(0.0), follows), strict=True):
                column.append(part)
            seen = follows
        if episode < EPISODES - 1:
            columns[-1][-1] = row(env.reset(options={"task": task})[0], 1.0)
    return tuple(torch.cat(column).numpy() for column in columns)


def main() -> None:
    """Let both take turns, and say whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=5)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loop", default="sync", choices=["sync", "pipelined"])
    given = parser.parse_args()
    print(describe("stretto", "torch", "gymnasium", "mujoco"))
    print(load_warning() or "", flush=True)
    size = given.rollouts, given.updates, given.threads
    runs = {"ours": ours(*size, given.loop), "original": original(given.original, *size)}
    rates: dict[str, list[Any]] = {name: [] for name in runs}
    for number in range(given.rounds + 1):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            began = now()
            steps = next(runs[name])
            if number:  # the first round loads code
                rates[name].append(steps / (now() - began))
                print(
                    f"{name}, round {number}: {rates[name][-1][0]:,.0f} steps/s, {rates[name][-1][1]:,.0f} by CPU",
                    flush=True,
                )
    for clock, what in enumerate(("steps a second", "steps a CPU second of this process")):
        medians = {name: median(rate[clock] for rate in some) for name, some in rates.items()}
        ratio = median(one[clock] / other[clock] for one, other in zip(*rates.values(), strict=True))
        print(f"{what}: ours {medians['ours']:,.0f}, original {medians['original']:,.0f}, ratio {ratio:.2f}")
    print(f"the bar is {LEAST_RATIO} times")


if __name__ == "__main__":
    main()
