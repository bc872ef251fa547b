"""Pointgoal: a point looks for a goal that it cannot see. The smallest problem of learning to learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from stretto.errors import InvalidAction, ResetNeeded, UsageError
from stretto.seeding.streams import SeedTree

Position = NDArray[np.float32]

GOAL_RADIUS, REACHED_DISTANCE, LIMIT = 1.0, 0.1, 2.0

# In degrees, within every quarter of the circle. The gaps keep the splits apart whatever is rounded.
ARCS = {"train": (0.0, 60.0), "eval": (62.0, 88.0)}

MISSIONS: dict[str, dict[str, Any]] = {
    "pointgoal": {"summary": "Find an unseen goal on a circle; goals to learn from.", "kwargs": {"split": "train"}},
    "pointgoal_eval": {"summary": "Find an unseen goal on a circle; goals held back.", "kwargs": {"split": "eval"}},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "long": {"horizon": 40},
    "slow": {"horizon": 40, "step_length": 0.05},
    "sparse": {"horizon": 40, "sparse": True},
}


def sample_task(split: str) -> Callable[[int, int, np.random.Generator], float]:
    """Return a source of tasks for `make_vec(tasks=...)`: each episode of each slot gets an angle of this split."""
    first, last = _arc(split)

    def draw(slot: int, episode: int, stream: np.random.Generator) -> float:
        quarter = int(stream.integers(4))
        return math.radians(90.0 * quarter + stream.uniform(first, last))

    return draw


def train_tasks(count: int, seed: int) -> list[float]:
    """Return angles to learn from, a function of the seed; of two lists, the shorter one begins the longer one."""
    return _tasks("train", count, seed)


def eval_tasks(count: int, seed: int) -> list[float]:
    """Return angles that no training task has, a function of the seed in the same way."""
    return _tasks("eval", count, seed)


def split_of(task: float) -> str | None:
    """Return the split to which an angle belongs, `None` where it is in a gap between them."""
    degrees = math.degrees(task) % 90.0
    return next((split for split, (first, last) in ARCS.items() if first <= degrees <= last), None)


class Pointgoal(gymnasium.Env[Position, Any]):
    """A point moves in the plane, towards a goal that it has to find by its rewards.

    **Task.** An angle in radians: the goal lies there on the circle of radius 1. `reset(options={"task": angle})` sets
    it, for any angle; without one, it is drawn from `split`: "train" has the first 60 degrees of every quarter of the
    circle, "eval" those from 62 to 88.

    **Observation.** The point's position, x and y. Neither the goal nor the last reward nor whether an episode has just
    begun is part of it: a learner that needs them takes them from what `step` returns. No info says where the goal is,
    either; `task` does, for those who look on.

    **Action.** A move in x and in y, clipped to -1 to 1 each and multiplied by `step_length`. Every episode begins at the
    centre, and the point stays within -2 to 2.

    **Reward.** Minus the distance to the goal after the move. With `sparse=True`, 1 minus ten times the distance where
    that is positive, so within 0.1 of the goal, and 0 elsewhere. An episode is truncated after `horizon` steps, and
    never terminates.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  as Gymnasium spells it

    def __init__(
        self,
        split: str = "train",
        horizon: int = 20,
        step_length: float = 0.1,
        sparse: bool = False,
        render_mode: str | None = None,
    ) -> None:
        _arc(split)
        if type(horizon) is not int or horizon < 1:
            raise UsageError(f"horizon must be a whole number of at least 1, got {horizon!r}; the default is 20")
        if not 0 < step_length <= LIMIT:
            raise UsageError(
                f"step_length must be above 0 and at most {LIMIT}, got {step_length!r}; the default is 0.1"
            )
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.split, self.horizon, self.step_length, self.sparse = split, horizon, step_length, sparse
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-LIMIT, LIMIT, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.task = 0.0
        self._draw = sample_task(split)
        self._running = False
        self._begin()

    @staticmethod
    def draw_task(stream: np.random.Generator, split: str) -> float:
        """Draw the angle of a goal that is in a split."""
        return sample_task(split)(0, 0, stream)

    def _begin(self) -> None:
        self._goal = GOAL_RADIUS * math.cos(self.task), GOAL_RADIUS * math.sin(self.task)
        self._path = [(0.0, 0.0)]
        self._distances: list[float] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Position, dict[str, Any]]:
        super().reset(seed=seed)
        task = (options or {}).get("task")
        self.task = self._draw(0, 0, self.np_random) if task is None else _angle(task)
        self._begin()
        self._running = True
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Position, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise ResetNeeded("a step needs an episode that has begun and is not over; call reset() first")
        right, up = _move(action)
        x, y = self._path[-1]
        x = min(max(x + self.step_length * right, -LIMIT), LIMIT)
        y = min(max(y + self.step_length * up, -LIMIT), LIMIT)
        self._path.append((x, y))
        distance = math.hypot(x - self._goal[0], y - self._goal[1])
        self._distances.append(distance)
        reward = max(0.0, 1.0 - distance / REACHED_DISTANCE) if self.sparse else -distance
        self._running = len(self._distances) < self.horizon
        return np.array((x, y), np.float32), reward, False, not self._running, {}

    def statistics(self) -> dict[str, float]:
        """Return the episode so far: distances to the goal, and whether and when the point came within 0.1 of it.

        `steps_to_goal` is the horizon where it did not.
        """
        distances = self._distances or [GOAL_RADIUS]
        reached = [step for step, distance in enumerate(distances, 1) if distance <= REACHED_DISTANCE]
        return {
            "distance_mean": sum(distances) / len(distances),
            "distance_last": distances[-1],
            "reached": float(bool(reached)),
            "steps_to_goal": float(reached[0] if reached else self.horizon),
            "goal_degrees": math.degrees(self.task) % 360.0,
        }

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture of the plane: the circle (blue: train, orange: eval), the goal, the way so far, the point."""
        if self.render_mode is None:
            return None
        image = np.full((256, 256, 3), 250, np.uint8)
        for degrees in np.arange(0.0, 360.0, 0.25):
            colour = {"train": (90, 140, 220), "eval": (240, 150, 60), None: (200, 200, 200)}
            angle = math.radians(degrees)
            _dot(image, GOAL_RADIUS * math.cos(angle), GOAL_RADIUS * math.sin(angle), 1, colour[split_of(angle)])
        _dot(image, *self._goal, 6, (60, 160, 80))
        for (x, y), (to_x, to_y) in zip(self._path, self._path[1:], strict=False):
            for part in np.linspace(0.0, 1.0, 12):
                _dot(image, x + part * (to_x - x), y + part * (to_y - y), 1, (150, 150, 150))
        _dot(image, *self._path[-1], 4, (30, 30, 30))
        return image


def _arc(split: str) -> tuple[float, float]:
    if split not in ARCS:
        raise UsageError(f"split must be one of {', '.join(map(repr, ARCS))}, got {split!r}")
    return ARCS[split]


def _tasks(split: str, count: int, seed: int) -> list[float]:
    if count < 1:
        raise UsageError(f"count must be at least 1, got {count}; ask for one task or more")
    draw, stream = sample_task(split), SeedTree(seed).child("pointgoal", split).generator()
    return [draw(0, number, stream) for number in range(count)]


def _angle(task: Any) -> float:
    try:
        angle = float(task)
    except (TypeError, ValueError):
        angle = math.nan
    if not math.isfinite(angle):
        raise UsageError(f"a task must be a finite angle in radians, got {task!r}; train_tasks() returns some")
    return angle


def _move(action: Any) -> tuple[float, float]:
    try:
        right, up = map(float, action)
    except (TypeError, ValueError):
        right = up = math.nan
    if not (math.isfinite(right) and math.isfinite(up)):
        raise InvalidAction(f"an action must be two finite numbers, got {action!r}; the space is Box(-1, 1, (2,))")
    return min(max(right, -1.0), 1.0), min(max(up, -1.0), 1.0)


def _dot(image: NDArray[np.uint8], x: float, y: float, size: int, colour: tuple[int, int, int]) -> None:
    """Fill a square of twice the size around a point of the plane."""
    row, column = round(128 - 60 * y), round(128 + 60 * x)
    image[max(row - size, 0) : row + size, max(column - size, 0) : column + size] = colour
