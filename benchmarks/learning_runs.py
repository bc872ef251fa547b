"""Single learning runs, by Stretto and by Stable-Baselines3, looked at in the same way: see `learning.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from stretto.budget import NativeThreads
from stretto.training.config import config_of
from stretto.training.settings import Config

LOOKS, FINAL = 20, 100  # episodes of a look at a run, and at its end
LOOK_SEED, FINAL_SEED = 1_000_000, 2_000_000


@dataclass(frozen=True)
class Problem:
    """A world, the return at which it counts as solved, and how often a run is looked at until it is.

    `settings` go over those of the preset. `hidden` leaves velocities away, which only a memory makes up for.
    """

    world: str
    threshold: float
    look_every: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    hidden: bool = False

    def make(self) -> gymnasium.Env[Any, Any]:
        """Return the world."""
        env = gymnasium.make(self.world)
        return WithoutVelocities(env) if self.hidden else env

    def config(self, learner: str) -> Config:
        """Return the settings of a run: the preset's, and the problem's own."""
        return config_of(f"gym:{self.world}", {"learner": learner}, self.settings)


class WithoutVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the cart's position and the pole's angle alone."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        seen: Any = env.observation_space
        self.observation_space = gymnasium.spaces.Box(seen.low[::2], seen.high[::2])

    def observation(self, observation: Any) -> Any:
        return observation[::2]


def _memory(cell: str) -> dict[str, Any]:
    """The settings of examples/memory.py, with another cell perhaps."""
    return {
        "steps": 40_000,
        "ppo": {
            "rows": 128,
            "batch": 256,
            "epochs": 8,
            "sequence": 16,
            "learning_rate": {"begin": 1e-3, "end": 0.0},
            "discount": 0.99,
            "smoothing": 0.95,
            "normalize_observations": True,
            "normalize_rewards": True,
            "network": {"widths": [64], "memory": cell},
        },
    }


PROBLEMS = {
    "CartPole-v1": Problem("CartPole-v1", 475.0, 1_000),
    "CartPole-v1 without velocities, LSTM": Problem("CartPole-v1", 475.0, 5_000, _memory("lstm"), hidden=True),
    "CartPole-v1 without velocities, GRU": Problem("CartPole-v1", 475.0, 5_000, _memory("gru"), hidden=True),
    "Acrobot-v1": Problem("Acrobot-v1", -100.0, 10_000),
    "LunarLander-v3": Problem("LunarLander-v3", 200.0, 25_000),
    "Pendulum-v1": Problem("Pendulum-v1", -200.0, 10_000),
    "Hopper-v5": Problem("Hopper-v5", 2_000.0, 50_000),
}

# ---- looking ----

Act = Callable[[Any, Any], tuple[Any, Any]]
"""Takes what was seen and a memory (`None` at first), and returns actions and the memory after that."""


def returns_of(problem: Problem, act: Act, episodes: int, first_seed: int) -> list[float]:
    """Return the returns of some episodes, all played at once."""
    envs = gymnasium.vector.SyncVectorEnv([problem.make] * episodes)
    seen, _ = envs.reset(seed=[first_seed + number for number in range(episodes)])
    returns, going, memory = np.zeros(episodes), np.ones(episodes, bool), None
    while going.any():
        actions, memory = act(seen, memory)
        seen, rewards, terminated, truncated, _ = envs.step(actions)
        returns += rewards * going
        going &= ~(terminated | truncated)
    envs.close()
    found: list[float] = returns.tolist()
    return found


class Course:
    """The way of one run: how long it took without the looks at it, and what these showed.

    Times are pairs: on the wall, and on a core.
    """

    def __init__(self, problem: Problem, act: Act, *, looks: bool) -> None:
        self._problem, self._act, self._looks = problem, act, looks
        self._began, self._away, self._next = _now(), np.zeros(2), problem.look_every
        self.reached: dict[str, Any] | None = None

    def look(self, steps: int) -> None:
        """See how good the policy is by now, if it is time to, and it was not good enough so far."""
        if not self._looks or self.reached is not None or steps < self._next:
            return
        began = _now()
        if np.mean(returns_of(self._problem, self._act, LOOKS, LOOK_SEED)) >= self._problem.threshold:
            self.reached = {"steps": steps, **_times(began - self._began - self._away)}
        self._next += self._problem.look_every
        self._away += _now() - began

    def outcome(self, steps: int) -> dict[str, Any]:
        """Return what came of the run, with its last weights."""
        times = _times(_now() - self._began - self._away)
        final = returns_of(self._problem, self._act, FINAL, FINAL_SEED) if self._looks else []
        return {"steps": steps, **times, "reached": self.reached, "final": final}


def _now() -> Any:
    return np.array([time.perf_counter(), time.process_time()])


def _times(seconds: Any) -> dict[str, float]:
    return {"wall": float(seconds[0]), "cpu": float(seconds[1])}


# ---- Stretto ----


def stretto_run(problem: Problem, config: Config, seed: int, *, looks: bool) -> dict[str, Any]:
    """Learn as `stretto train` does, and in one process."""
    from stretto import make_vec
    from stretto.collection.collector import Trials
    from stretto.collection.worlds import BlockWorlds
    from stretto.training.blocks import learner_blocks
    from stretto.training.learner_workers import Workplace
    from stretto.training.loop import Loop, Pace
    from stretto.training.run import build_learner
    from stretto.training.sets import LearnerSet
    from stretto.training.sides import SteppedHere
    from stretto.workers.backends import SERIAL

    NativeThreads(1).cap_for_good()
    worlds = BlockWorlds(make_vec(problem.make, config.num_envs, backend="serial", copy=False))
    blocks = learner_blocks(worlds.kinds, seed, worlds.count)
    learners = LearnerSet(
        lambda number: build_learner(config.learner, config.settings, blocks, number), 1, Workplace(SERIAL)
    )
    policy: Any = learners.learners[0].policy

    def act(seen: Any, memory: Any) -> tuple[Any, Any]:
        first = policy.initial_state()
        if memory is None and first is not None:
            memory = np.broadcast_to(first, (1, len(seen), *first.shape)).copy()
        policy.greedy = True
        answer = policy.step_block(seen[None], memory, None)
        policy.greedy = False
        return answer.actions[0], answer.states

    loop = Loop(SteppedHere(worlds, Trials(seed)), learners, Pace(config.settings.rows, config.steps))
    course = Course(problem, act, looks=looks)
    for interval in loop:
        course.look(interval.steps)
    outcome = course.outcome(loop.steps)
    loop.close()
    return outcome


# ---- Stable-Baselines3 ----

# Those of rl-baselines3-zoo. `linear` falls from there to 0.
ZOO: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "CartPole-v1"): {
        "steps": 100_000, "envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
        "learning_rate": {"linear": 1e-3}, "clip_range": {"linear": 0.2},
    },
    ("ppo", "LunarLander-v3"): {
        "steps": 1_000_000, "envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999,
        "n_epochs": 4, "ent_coef": 0.01,
    },
    ("ppo", "Pendulum-v1"): {
        "steps": 100_000, "envs": 4, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10,
        "learning_rate": 1e-3, "use_sde": True, "sde_sample_freq": 4,
    },
    ("dqn", "CartPole-v1"): {
        "steps": 50_000, "envs": 1, "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "gamma": 0.99,
        "learning_starts": 1_000, "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128,
        "exploration_fraction": 0.16, "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256]},
    },
    ("sac", "Pendulum-v1"): {"steps": 20_000, "envs": 1, "learning_rate": 1e-3},
}  # fmt: skip


def sb3_equal(config: Config) -> dict[str, Any]:
    """Return the settings of a run of ours in the words of SB3.

    Of DQN it has no double learning, and it counts environment steps between copies of the target network.
    """
    ours = config.settings
    shared = {
        "steps": config.steps,
        "envs": config.num_envs,
        "batch_size": ours.batch,
        "gamma": ours.discount,
        "max_grad_norm": ours.most_gradient,
        "learning_rate": _sb3_schedule(ours.learning_rate),
        "policy_kwargs": {"net_arch": list(ours.network.widths)},
    }
    if config.learner == "ppo":
        return shared | {
            "n_steps": ours.rows,
            "n_epochs": ours.epochs,
            "gae_lambda": ours.smoothing,
            "clip_range": ours.clip,
            "ent_coef": ours.entropy.begin,
            "vf_coef": ours.value_weight,
            "target_kl": ours.most_divergence,
            "normalize": [ours.normalize_observations, ours.normalize_rewards],
        }
    if config.learner == "sac":
        del shared["max_grad_norm"]  # it has none
        return shared | {
            "train_freq": ours.rows,
            "gradient_steps": ours.updates,
            "buffer_size": ours.buffer,
            "learning_starts": ours.learning_starts,
            "tau": ours.target_average,
        }
    steps_an_update = ours.rows * config.num_envs / ours.updates
    average = ours.target_average is not None
    return shared | {
        "train_freq": ours.rows,
        "gradient_steps": ours.updates,
        "buffer_size": ours.buffer,
        "learning_starts": ours.learning_starts,
        "n_steps": ours.n_steps,
        "exploration_initial_eps": ours.epsilon.begin,
        "exploration_final_eps": ours.epsilon.end,
        "exploration_fraction": ours.epsilon.share,
        # An average that is moved once in `updates` updates goes as far as ours does in all of them.
        "tau": 1 - (1 - ours.target_average) ** ours.updates if average else 1.0,
        "target_update_interval": round(steps_an_update * (ours.updates if average else ours.target_interval)),
    }


def _sb3_schedule(schedule: Any) -> Any:
    return schedule.begin if schedule.end is None else {"linear": schedule.begin}


def sb3_run(problem: Problem, learner: str, settings: Mapping[str, Any], seed: int, *, looks: bool) -> dict[str, Any]:
    """Learn as SB3 does."""
    from stable_baselines3 import DQN, PPO, SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    NativeThreads(1).cap_for_good()
    given = dict(settings)
    steps, count, normalize = given.pop("steps"), given.pop("envs"), given.pop("normalize", [False, False])
    for name, value in given.items():
        if isinstance(value, dict) and "linear" in value:
            given[name] = lambda left, begin=value["linear"]: left * begin
    envs: Any = make_vec_env(problem.make, count, seed=seed)
    if any(normalize):
        envs = VecNormalize(envs, norm_obs=normalize[0], norm_reward=normalize[1], gamma=given["gamma"])
    model = {"ppo": PPO, "dqn": DQN, "sac": SAC}[learner]("MlpPolicy", envs, seed=seed, device="cpu", **given)

    def act(seen: Any, memory: Any) -> tuple[Any, Any]:
        seen = envs.normalize_obs(seen) if any(normalize) else seen
        return model.predict(seen, deterministic=True)[0], memory

    course = Course(problem, act, looks=looks)

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            course.look(self.num_timesteps)

    model.learn(steps, callback=Look())
    return course.outcome(model.num_timesteps)
