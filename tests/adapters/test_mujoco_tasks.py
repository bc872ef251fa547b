"""Task worlds on MuJoCo: what is rewarded follows from the task, and tasks are held back."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest

import stretto
from stretto.errors import UsageError

pytest.importorskip("mujoco")

from stretto.adapters.mujoco_tasks import KINDS, SPLITS, MujocoTask

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def steps_of(world: Any, count: int = 5, **options: Any) -> list[tuple[float, dict[str, Any]]]:
    """Return rewards and infos of some steps from a seed, with actions that are always the same."""
    world.reset(seed=3, options=options or None)
    draw = np.random.default_rng(0)
    size = world.action_space.shape
    found = [world.step(draw.uniform(-1, 1, size).astype(np.float32)) for _ in range(count)]
    return [(step[1], step[4]) for step in found]


@pytest.mark.parametrize(
    ("kind", "task", "gained"),
    [
        ("half_cheetah_dir", -1.0, lambda info: -info["x_velocity"]),
        ("half_cheetah_vel", 1.5, lambda info: -abs(info["x_velocity"] - 1.5)),
        ("ant_dir", math.pi / 3, lambda info: info["x_velocity"] / 2 + info["y_velocity"] * math.sqrt(3) / 2),
    ],
)
def test_a_step_gives_what_the_task_asks_for_without_the_costs_of_the_world(
    kind: str, task: float, gained: Any
) -> None:
    world = MujocoTask(kind)
    plain = gymnasium.make(KINDS[kind].world, **KINDS[kind].kwargs)
    for (reward, info), (usual, same) in zip(steps_of(world, task=task), steps_of(plain), strict=True):
        assert info["x_velocity"] == same["x_velocity"]
        assert reward == pytest.approx(gained(info) + usual - same["reward_forward"])
    world.close()
    plain.close()


def test_a_task_is_what_options_say_then_what_was_set_then_one_of_the_split() -> None:
    world = MujocoTask("half_cheetah_vel", split="eval")
    world.reset(seed=1)
    drawn = world.task
    world.reset(seed=1)
    assert world.task == drawn
    assert 0.69 * 0.5 <= drawn % 0.5 <= 0.97 * 0.5
    world.reset_task([2.5])
    world.reset(seed=1, options={"task": 0.25})
    assert world.task == 0.25
    world.reset(seed=1)
    assert world.task == 2.5
    with pytest.raises(UsageError, match="a task must be a finite number, got 'left'"):
        world.reset_task("left")
    world.close()


@pytest.mark.parametrize("kind", KINDS)
def test_no_task_is_in_both_splits_where_there_are_enough_of_them(kind: str) -> None:
    world = MujocoTask(kind)
    draw = np.random.default_rng(0)
    train, held_out = ({world.draw_task(draw, split) for _ in range(200)} for split in SPLITS)
    if kind == "half_cheetah_dir":
        assert train == held_out == {-1.0, 1.0}
    else:
        near = min(abs(one - other) for one in train for other in held_out)
        assert near > 0.03 * KINDS[kind].tasks.width  # type: ignore[union-attr]
    world.close()


def test_a_kind_or_a_split_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"kind must be one of ant_dir, .* got 'ant' and 'train'"):
        MujocoTask("ant")


def test_a_mission_is_played_by_its_name_for_its_horizon_with_tasks_of_a_collection() -> None:
    found = stretto.collect(
        "half_cheetah_vel", "random", 2, tasks=[0.5, 2.5], episodes_per_task=2, env_kwargs={"horizon": 10}, num_envs=2
    )
    assert [len(rollout) for rollout in found] == [20, 20]
    assert all(rollout.truncated[[9, 19]].all() for rollout in found)
