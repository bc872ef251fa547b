"""Task worlds on MuJoCo: a half cheetah that runs in a direction or at a speed, and an ant that runs in a direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from stretto.errors import UsageError
from stretto.spaces import Array

__calls_user_code__ = True

SPLITS = {"train": (0.0, 0.66), "eval": (0.69, 0.97)}
"""Where in each band of tasks those of a split lie. Nothing is in both, whatever is rounded."""


@dataclass(frozen=True)
class Bands:
    """Tasks that are numbers: so many `bands`, each so wide. A part of each is held back."""

    bands: int
    width: float

    def draw(self, stream: np.random.Generator, split: str) -> float:
        """Draw a task of a split."""
        return self.width * (int(stream.integers(self.bands)) + stream.uniform(*SPLITS[split]))


@dataclass(frozen=True)
class Either:
    """Tasks that are one of a few numbers: there are too few to hold any back."""

    numbers: tuple[float, ...]

    def draw(self, stream: np.random.Generator, split: str) -> float:
        """Draw a task; both splits have the same."""
        return self.numbers[int(stream.integers(len(self.numbers)))]


@dataclass(frozen=True)
class Kind:
    """A world of Gymnasium's, what of it is set, its tasks, and what a step gives by task and info beside all costs."""

    world: str
    kwargs: Mapping[str, Any]
    tasks: Bands | Either
    gain: Callable[[float, Mapping[str, Any]], float]


def _along(angle: float, info: Mapping[str, Any]) -> float:
    return math.cos(angle) * float(info["x_velocity"]) + math.sin(angle) * float(info["y_velocity"])


# Costs of control are those of the worlds that VariBAD and pomdp-baselines have under these names.
KINDS = {
    "ant_dir": Kind("Ant-v5", {"ctrl_cost_weight": 0.5}, Bands(4, math.pi / 2), _along),
    "half_cheetah_dir": Kind(
        "HalfCheetah-v5",
        {"ctrl_cost_weight": 0.05},
        Either((-1.0, 1.0)),
        lambda sign, info: sign * float(info["x_velocity"]),
    ),
    "half_cheetah_vel": Kind(
        "HalfCheetah-v5",
        {"ctrl_cost_weight": 0.05},
        Bands(6, 0.5),
        lambda speed, info: -abs(float(info["x_velocity"]) - speed),
    ),
}

MISSIONS: dict[str, dict[str, Any]] = {
    "ant_dir": {"summary": "An ant runs in a direction that it is not told.", "kwargs": {"kind": "ant_dir"}},
    "half_cheetah_dir": {
        "summary": "A half cheetah runs forwards or backwards, and is not told which.",
        "kwargs": {"kind": "half_cheetah_dir"},
    },
    "half_cheetah_vel": {
        "summary": "A half cheetah runs at a speed that it is not told.",
        "kwargs": {"kind": "half_cheetah_vel"},
    },
}
VARIANTS: dict[str, dict[str, Any]] = {"eval": {"split": "eval"}}


class MujocoTask(gymnasium.Env[Array, Array]):
    """One of Gymnasium's MuJoCo worlds, in which a task says what is rewarded.

    **Task.** A number: the direction of an ant in radians, the speed of a half cheetah (0 to 3), or its direction (-1 or
    1). `reset(options={"task": number})` sets it, and `reset_task(number)` does so for all episodes from the next one on.
    Without either it is drawn from `split`. `draw_task(stream, split)` draws others.

    **Reward.** What a step gives by the task, and what the world itself gives or takes for staying healthy, for control and
    for contact. An episode is truncated after `horizon` steps.
    """

    metadata = {"render_modes": ["human", "rgb_array", "depth_array"]}  # noqa: RUF012  as Gymnasium spells it

    def __init__(
        self, kind: str, split: str = "train", horizon: int = 200, render_mode: str | None = None, **kwargs: Any
    ) -> None:
        if kind not in KINDS or split not in SPLITS:
            raise UsageError(
                f"kind must be one of {', '.join(KINDS)} and split one of {', '.join(SPLITS)}, got {kind!r} and {split!r}"
            )
        about = KINDS[kind]
        given = {**about.kwargs, **kwargs, "max_episode_steps": horizon, "disable_env_checker": True}
        self._world = gymnasium.make(about.world, render_mode=render_mode, **given)
        self.split, self.horizon, self.render_mode, self._kind = split, horizon, render_mode, about
        self.observation_space: Any = self._world.observation_space
        self.action_space: Any = self._world.action_space
        self.task = 0.0
        self._fixed: float | None = None

    def draw_task(self, stream: np.random.Generator, split: str) -> float:
        """Draw a task of a split, "train" or "eval"."""
        return self._kind.tasks.draw(stream, split)

    def reset_task(self, task: Any) -> None:
        """Let all episodes from the next one on have this task."""
        self._fixed = _number(task)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is not None:
            self.task = _number(task)
        else:
            self.task = self.draw_task(self.np_random, self.split) if self._fixed is None else self._fixed
        return self._world.reset(seed=seed)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        seen, _, terminated, truncated, info = self._world.step(action)
        reward = self._kind.gain(self.task, info)
        reward += sum(float(info.get(part, 0.0)) for part in ("reward_ctrl", "reward_contact", "reward_survive"))
        return seen, reward, terminated, truncated, {**info, "reward_forward": self._kind.gain(self.task, info)}

    def render(self) -> Any:
        return self._world.render()

    def close(self) -> None:
        self._world.close()


def make(kind: str, **kwargs: Any) -> MujocoTask:
    """Make a world of this kind."""
    return MujocoTask(kind, **kwargs)


def _number(task: Any) -> float:
    try:
        number = float(np.asarray(task, np.float64).reshape(()))
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"a task must be a finite number, got {task!r}; draw_task() returns one")
    return number
