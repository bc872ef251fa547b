"""The loop: agents that learn side by side, each as if it were alone, after they collected or meanwhile."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import stretto

torch = pytest.importorskip("torch")

from stretto.budget import CpuBudget  # noqa: E402
from stretto.collection.collector import Collector, Trials  # noqa: E402
from stretto.collection.pieces import piece_of  # noqa: E402
from stretto.collection.worlds import BlockWorlds  # noqa: E402
from stretto.errors import FewerWorkers, ResourceError  # noqa: E402
from stretto.policies.block_runner import BlockRunner  # noqa: E402
from stretto.storage.of_layout import buffer_of  # noqa: E402
from stretto.training.blocks import learner_blocks  # noqa: E402
from stretto.training.learner_workers import Workplace  # noqa: E402
from stretto.training.learners.base import LearnerBlock  # noqa: E402
from stretto.training.learners.dqn import Dqn  # noqa: E402
from stretto.training.learners.dqn_settings import DqnSettings  # noqa: E402
from stretto.training.learners.ppo import Ppo  # noqa: E402
from stretto.training.learners.ppo_settings import PpoSettings  # noqa: E402
from stretto.training.loop import Loop, Pace  # noqa: E402
from stretto.training.schedules import Schedule  # noqa: E402
from stretto.training.sets import LearnerSet  # noqa: E402
from stretto.training.sides import SteppedHere  # noqa: E402
from stretto.workers.backends import PROCESS, SERIAL, THREAD  # noqa: E402
from stretto.workers.base import Backend  # noqa: E402

SHORT = PpoSettings(rows=16, batch=32, epochs=2, normalize_observations=True)
REPLAYED = DqnSettings(
    rows=16,
    updates=2,
    batch=8,
    buffer=100,
    learning_starts=20,
    epsilon=Schedule(0.5),
    priority_exponent=0.6,
    priority_correction=Schedule(0.5),
)


def learner(blocks: list[LearnerBlock], settings: Any, number: int) -> Any:
    return (Ppo if isinstance(settings, PpoSettings) else Dqn)(blocks[number], settings)


@contextmanager
def loop_of(
    world: str,
    steps: int,
    backend: Backend = SERIAL,
    *,
    size: int = 8,
    settings: Any = SHORT,
    overlaps: bool = False,
    where: str = "serial",
    workers: int = 2,
    limit_seconds: float = 60.0,
    budget: CpuBudget | None = None,
) -> Iterator[tuple[Loop, LearnerSet]]:
    """Open a loop with 4 environments and blocks of a size."""
    with stretto.make_vec(world, 4, copy=False, backend=where) as envs:
        worlds = BlockWorlds(envs)
        blocks = learner_blocks(worlds.kinds, 7, worlds.count, size)
        build = partial(learner, blocks, settings)
        learners = LearnerSet(
            build,
            len(blocks),
            Workplace(backend, workers, limit_seconds=limit_seconds, budget=budget),
            ahead=int(overlaps),
        )
        loop = Loop(SteppedHere(worlds, Trials(7)), learners, Pace(settings.rows, steps))
        try:
            yield loop, learners
        finally:
            loop.close()


def weights(learners: LearnerSet) -> np.ndarray:
    """Return the weights of all agents, in their order."""
    return np.concatenate([one.policy.network.parameters.flat.numpy() for one in learners.learners])


def weights_after(world: str, steps: int, *args: Any, **options: Any) -> np.ndarray:
    with loop_of(world, steps, *args, **options) as (loop, learners):
        list(loop)
        return weights(learners).copy()


@pytest.fixture(scope="module")
def wanted() -> dict[bool, np.ndarray]:
    """What Foundry's agents learn in a single process, one after the other; and if collecting overlaps with learning."""
    return {overlaps: weights_after("foundry_1", 300, overlaps=overlaps) for overlaps in (False, True)}


def test_weights_do_not_depend_on_how_many_agents_are_computed_together(wanted: dict[bool, np.ndarray]) -> None:
    for size in (1, 3):
        assert np.array_equal(weights_after("foundry_1", 300, size=size), wanted[False])


@pytest.mark.parametrize("overlaps", [False, True], ids=["sync", "pipelined"])
@pytest.mark.parametrize("backend", [THREAD, PROCESS], ids=str)
def test_weights_do_not_depend_on_where_agents_learn(
    backend: Backend, overlaps: bool, wanted: dict[bool, np.ndarray]
) -> None:
    assert np.array_equal(weights_after("foundry_1", 300, backend, size=2, overlaps=overlaps), wanted[overlaps])


@pytest.mark.parametrize("overlaps", [False, True], ids=["sync", "pipelined"])
def test_weights_do_not_depend_on_where_worlds_are_stepped(overlaps: bool) -> None:
    here, there = (weights_after("CartPole-v1", 600, overlaps=overlaps, where=one) for one in ("serial", "process"))
    assert np.array_equal(here, there)


@pytest.mark.parametrize("overlaps", [False, True], ids=["sync", "pipelined"])
def test_a_learner_whose_process_was_killed_learns_its_interval_again(
    overlaps: bool, wanted: dict[bool, np.ndarray]
) -> None:
    with loop_of("foundry_1", 300, PROCESS, overlaps=overlaps) as (loop, learners):
        for interval in loop:
            if interval.number == 2:
                os.kill(learners.pids[0], signal.SIGKILL)
        assert np.array_equal(weights(learners), wanted[overlaps])


def test_a_learner_that_hangs_is_ended_and_its_interval_is_learned_again(wanted: dict[bool, np.ndarray]) -> None:
    with loop_of("foundry_1", 300, PROCESS, size=4, overlaps=True, limit_seconds=3.0) as (loop, learners):
        for interval in loop:
            if interval.number == 2:
                [hung] = learners.pids
                os.kill(hung, signal.SIGSTOP)
        assert np.array_equal(weights(learners), wanted[True])
        assert learners.pids != [hung]


def test_workers_are_taken_away_and_added_as_the_budget_changes() -> None:
    budget = CpuBudget(4)
    with loop_of("foundry_1", 400, PROCESS, size=1, workers=3, budget=budget) as (loop, learners):
        processes = []
        for interval in loop:
            processes.append(len(learners.pids))
            if interval.number == 2:
                lease = budget.lease(1)
            if interval.number == 4:
                lease.release()
        assert processes == [2, 2, 1, 1] + [2] * (len(processes) - 4)  # the caller computes a share itself
        assert len(processes) > 4
        assert np.array_equal(weights(learners), weights_after("foundry_1", 400))


def test_learners_whose_processes_cannot_be_had_are_computed_by_the_caller_and_it_is_said_once(
    wanted: dict[bool, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise ResourceError("a worker process would take more processes than the system allows")

    with loop_of("foundry_1", 300, replace(PROCESS, start=refused), size=2, overlaps=True) as (loop, learners):
        with pytest.warns(FewerWorkers, match="the caller does the work of worker 0 of the learners, and") as told:
            list(loop)
        assert len(told) == 1
        assert not learners.pids
        assert np.array_equal(weights(learners), wanted[True])


def plainly_pipelined(settings: Any, intervals: int) -> np.ndarray:
    """Return what an agent acts by at last that learns from an interval what it collects the one after the next with."""
    with stretto.make_vec("CartPole-v1", 4, copy=False, backend="serial") as envs:
        worlds = BlockWorlds(envs)
        acts, learns = (learner(learner_blocks(worlds.kinds, 7, 4), settings, 0) for _ in range(2))
        collector = Collector(worlds, BlockRunner([acts.policy], 4), {worlds.kinds[0].agents[0]: 0})
        segments, buffer, known = collector.segments(settings.rows, Trials(7)), buffer_of(learns.layout), []
        for number in range(intervals):
            if number >= 2:
                acts.load_state(known[number - 2])
            buffer.extend(piece_of(next(segments), buffer.block))
            with buffer.snapshot() as seen:
                learns.learn(seen, 0.0)
            known.append(copy.deepcopy(learns.state()))
        acts.load_state(known[-2])
        found: np.ndarray = acts.policy.network.parameters.flat.numpy()
        return found


@pytest.mark.parametrize("settings", [SHORT, REPLAYED], ids=["ppo", "dqn"])
@pytest.mark.parametrize("backend", [SERIAL, PROCESS], ids=str)
def test_an_interval_is_collected_with_what_was_learned_two_intervals_before(backend: Backend, settings: Any) -> None:
    with loop_of("CartPole-v1", 1 << 20, backend, settings=settings, overlaps=True) as (loop, learners):
        for interval in loop:
            assert interval.overlap is not None
            assert interval.overlap.lag == min(1, interval.number - 1)
            if interval.number == 6:
                break
        assert np.array_equal(weights(learners), plainly_pipelined(settings, 6))
