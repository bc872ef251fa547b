"""Tasks of a world for learning to learn: some to learn from, and others to be evaluated on."""

from __future__ import annotations

from typing import Any

from stretto.core import SIMULTANEOUS
from stretto.errors import UsageError
from stretto.missions.mission import Mission
from stretto.seeding.streams import SeedTree
from stretto.training.settings import TrialsSettings

TRAIN, EVAL = "train", "eval"


def tasks_of(mission: Mission, settings: TrialsSettings, seed: int) -> tuple[list[Any], list[Any]] | None:
    """Return the tasks to learn from and those to be evaluated on that a world draws; `None` if it draws none.

    A world draws tasks by a method `draw_task(stream, split)`, where the split is "train" or "eval". They follow from the
    seed; of two lists, the shorter one begins the longer one.
    """
    world = mission.make()
    try:
        draw = getattr(getattr(world, "unwrapped", world), "draw_task", None)
        if draw is None:
            return None
        tree = SeedTree(seed).child("tasks")
        train, held_out = tree.child(TRAIN).generator(), tree.child(EVAL).generator()
        return (
            [draw(train, TRAIN) for _ in range(settings.train_tasks)],
            [draw(held_out, EVAL) for _ in range(settings.eval_tasks)],
        )
    finally:
        world.close()


def check_trials(settings: TrialsSettings, tasks: Any, turns: str) -> None:
    """Refuse trials that nobody knows the tasks of, or that are played in turns."""
    if settings.episodes > 1 and tasks is None:
        raise UsageError(
            f"a trial has episodes of one task, got {settings.episodes} episodes and a world that draws no tasks; pass "
            f"tasks, or give the world a method draw_task(stream, split)"
        )
    if settings.episodes > 1 and settings.across and turns != SIMULTANEOUS:
        raise UsageError(f"trials.across needs simultaneous turns, got {turns}; set trials.across to false")
