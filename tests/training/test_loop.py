"""The synchronous loop: agents that learn side by side, each as if it were alone."""

from __future__ import annotations

import os
import signal
from functools import partial

import numpy as np
import pytest

import stretto

torch = pytest.importorskip("torch")

from stretto.collection.collector import Trials  # noqa: E402
from stretto.collection.worlds import BlockWorlds  # noqa: E402
from stretto.training.blocks import learner_blocks  # noqa: E402
from stretto.training.learners.base import LearnerBlock  # noqa: E402
from stretto.training.learners.ppo import Ppo  # noqa: E402
from stretto.training.learners.ppo_settings import PpoSettings  # noqa: E402
from stretto.training.loop import SyncLoop  # noqa: E402
from stretto.training.sets import LearnerSet  # noqa: E402
from stretto.workers.backends import PROCESS, SERIAL, THREAD  # noqa: E402
from stretto.workers.base import Backend  # noqa: E402

SHORT = PpoSettings(rows=16, batch=32, epochs=2, normalize_observations=True)


def learner(blocks: list[LearnerBlock], number: int) -> Ppo:
    return Ppo(blocks[number], SHORT)


def weights_after(
    world: str, steps: int, size: int = 8, where: str = "serial", backend: Backend = SERIAL, kill: bool = False
) -> np.ndarray:
    """Train with blocks of a size; return the weights of all agents, in their order."""
    with stretto.make_vec(world, 4, backend=where, copy=False) as envs:
        worlds = BlockWorlds(envs)
        blocks = learner_blocks(worlds.kinds, 7, worlds.count, size)
        learners = LearnerSet(partial(learner, blocks), len(blocks), backend, 2)
        loop = SyncLoop(worlds, learners, Trials(7), SHORT.rows, steps)
        for interval in loop:
            if kill and interval.number == 2:
                os.kill(learners.pids[0], signal.SIGKILL)
        loop.close()
        found = [one.policy.network.parameters for one in learners.learners]
        return np.concatenate([one.flat.numpy() for one in found])


def test_weights_do_not_depend_on_how_many_agents_are_computed_together() -> None:
    together = weights_after("foundry_1", 300)
    for size in (1, 3):
        assert np.array_equal(weights_after("foundry_1", 300, size), together)


@pytest.mark.parametrize("backend", [THREAD, PROCESS], ids=str)
def test_weights_do_not_depend_on_where_agents_learn(backend: Backend) -> None:
    assert np.array_equal(weights_after("foundry_1", 300, 2, backend=backend), weights_after("foundry_1", 300))


def test_weights_do_not_depend_on_where_worlds_are_stepped() -> None:
    assert np.array_equal(weights_after("CartPole-v1", 600, where="process"), weights_after("CartPole-v1", 600))


def test_a_learner_whose_process_was_killed_learns_its_interval_again() -> None:
    killed = weights_after("foundry_1", 300, 2, backend=PROCESS, kill=True)
    assert np.array_equal(killed, weights_after("foundry_1", 300))
