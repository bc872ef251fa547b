"""Trials: two episodes of one task, through which a policy keeps what it has found out. The second one gains by it."""

import numpy as np

import stretto
from stretto.games.pointgoal import train_tasks


class FindsTheGoal(stretto.BlockPolicy):
    """Walks at random until its rewards, which are distances, tell where the goal is; then it goes there."""

    def initial_state(self):
        return {"squares": 1e-9 * np.eye(2), "sums": np.zeros(2)}  # of the equations for the goal

    def step_block(self, observations, states, choices):
        place, reward = observations[..., :2].astype(float), observations[..., 2].astype(float)
        # |place - goal| = -reward and |goal| = 1 give an equation: place · goal = known.
        known = ((place**2).sum(-1) + 1 - reward**2) / 2
        squares = states["squares"] + place[..., :, None] * place[..., None, :]
        sums = states["sums"] + place * known[..., None]
        goal = np.linalg.solve(squares, sums[..., None])[..., 0]
        found = np.linalg.det(squares)[..., None] > 1e-4
        moves = np.where(found, 10 * (goal - place), choices.normal(2))
        return stretto.BlockAnswer(np.clip(moves, -1, 1), {"squares": squares, "sums": sums})


tasks = train_tasks(count=40, seed=0)
for workers in (1, 2):  # the same rollouts at any width
    rollouts = stretto.collect(
        "pointgoal",
        FindsTheGoal,
        100,
        tasks=tasks,
        episodes_per_task=2,
        rewards=True,
        backend="process",
        workers=workers,
    )
    first, second = np.mean([[one.rewards[part].sum() for part in one.episodes] for one in rollouts], axis=0)
    print(f"{workers} workers, {rollouts}: {first:.2f} in the first episode, {second:.2f} in the second")
    print(rollouts.digest())
