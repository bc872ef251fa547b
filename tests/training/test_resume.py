"""A run that goes on from its saved state ends with the weights of one that was never interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stretto

torch = pytest.importorskip("torch")

from stretto.checkpoint import read_folder, write_folder  # noqa: E402
from stretto.collection.collector import Trials  # noqa: E402
from stretto.collection.worlds import BlockWorlds  # noqa: E402
from stretto.policies.networks.network import NetworkSettings  # noqa: E402
from stretto.training.blocks import learner_blocks  # noqa: E402
from stretto.training.learner_workers import Workplace  # noqa: E402
from stretto.training.learners.dqn import Dqn  # noqa: E402
from stretto.training.learners.dqn_settings import DqnSettings  # noqa: E402
from stretto.training.learners.ppo import Ppo, PpoSettings  # noqa: E402
from stretto.training.loop import Loop, Pace  # noqa: E402
from stretto.training.schedules import Schedule  # noqa: E402
from stretto.training.sets import LearnerSet  # noqa: E402
from stretto.training.sides import SteppedHere  # noqa: E402
from stretto.training.state_files import read_state, state_contents  # noqa: E402
from stretto.workers.backends import PROCESS, SERIAL  # noqa: E402

PLAIN = PpoSettings(rows=16, batch=32, epochs=2)
NORMALIZED = PpoSettings(
    rows=16,
    batch=32,
    epochs=2,
    learning_rate=Schedule(1e-3, 0.0),
    normalize_observations=True,
    normalize_rewards=True,
    network=NetworkSettings((16,)),
)


RECURRENT = PpoSettings(
    rows=16, batch=32, epochs=1, sequence=8, network=NetworkSettings((16,), memory="gru", memory_width=8)
)
REPLAYED = DqnSettings(
    rows=16, batch=8, buffer=100, learning_starts=50, n_steps=2, target_interval=3, priority_exponent=0.6
)
CHUNKS = DqnSettings(
    rows=16,
    batch=4,
    buffer=200,
    learning_starts=50,
    burn_in=2,
    chunk=4,
    network=NetworkSettings((16,), memory="lstm", memory_width=8),
)


def learner(settings: Any, blocks: Any, number: int) -> Any:
    return (Ppo if isinstance(settings, PpoSettings) else Dqn)(blocks[number], settings)


@contextmanager
def loop_of(
    world: Any, settings: Any, *, sets: Any = SERIAL, overlaps: bool = False, intervals: int = 6, **options: Any
) -> Iterator[tuple[Loop, LearnerSet]]:
    """Open a loop of so many intervals, with 4 environments."""
    with stretto.make_vec(world, 4, copy=False, **{"backend": "serial", **options}) as envs:
        worlds = BlockWorlds(envs)
        blocks = learner_blocks(worlds.kinds, 7, worlds.count)
        learners = LearnerSet(partial(learner, settings, blocks), len(blocks), Workplace(sets, 2), ahead=int(overlaps))
        pace = Pace(settings.rows, intervals * 4 * settings.rows - 60)
        loop = Loop(SteppedHere(worlds, Trials(7), resumable=True), learners, pace)
        try:
            yield loop, learners
        finally:
            loop.close()


def weights(learners: LearnerSet) -> list[bytes]:
    return [one.policy.network.parameters.flat.numpy().tobytes() for one in learners.learners]


CASES = {
    "CartPole": ("CartPole-v1", PLAIN),
    "numbers of any scale": ("CartPole-v1", NORMALIZED),
    "a recurrent network": ("CartPole-v1", RECURRENT),
    "a buffer with priorities": ("CartPole-v1", REPLAYED),
    "a buffer of sequences": ("CartPole-v1", CHUNKS),
    "several agents": ("foundry_1", PpoSettings(rows=16, batch=32, epochs=1, network=NetworkSettings((16,)))),
    "numbers as actions": ("Pendulum-v1", PLAIN),
}


@pytest.mark.parametrize(("world", "settings"), CASES.values(), ids=CASES)
def test_a_run_goes_on_as_if_nothing_had_happened(world: str, settings: Any, tmp_path: Path) -> None:
    with loop_of(world, settings) as (loop, learners):
        wanted = []
        for interval in loop:
            wanted.append(interval)
            if interval.number == 2:
                write_folder(tmp_path, state_contents(loop.state()))
        last = weights(learners)
    elsewhere: dict[str, Any] = {"backend": "process", "workers": 2, "sets": PROCESS}
    for options in ({}, elsewhere) if world == "CartPole-v1" else ({},):
        with loop_of(world, settings, **options) as (loop, learners):
            loop.load_state(read_state(read_folder(tmp_path)))
            assert list(loop) == wanted[2:]
            assert weights(learners) == last


MIDDLE = "numbers of any scale", "a buffer with priorities", "a buffer of sequences"


@pytest.mark.parametrize(("world", "settings"), [CASES[name] for name in MIDDLE], ids=MIDDLE)
def test_a_run_goes_on_in_the_middle_of_learning_and_collecting(world: str, settings: Any, tmp_path: Path) -> None:
    with loop_of(world, settings, overlaps=True) as (loop, learners):
        wanted = []
        for interval in loop:
            wanted.append(interval)
            if interval.number == 3:
                write_folder(tmp_path / "middle", state_contents(loop.state()))
        write_folder(tmp_path / "end", state_contents(loop.state()))
        last = weights(learners)
    for sets in (SERIAL,) if settings is CHUNKS else (SERIAL, PROCESS):
        with loop_of(world, settings, sets=sets, overlaps=True) as (loop, learners):
            loop.load_state(read_state(read_folder(tmp_path / "middle")))
            assert list(loop) == wanted[3:]
            assert weights(learners) == last
    with loop_of(world, settings, overlaps=True) as (loop, learners):  # what was over has nothing more to do
        loop.load_state(read_state(read_folder(tmp_path / "end")))
        assert not list(loop)
        assert weights(learners) == last


def test_a_run_that_was_over_goes_on_with_more_steps_as_if_it_had_been_longer_from_the_start(tmp_path: Path) -> None:
    found = []
    with loop_of("CartPole-v1", PLAIN, overlaps=True) as (loop, _):
        list(loop)
        write_folder(tmp_path, state_contents(loop.state()))
    for resumed in (False, True):
        with loop_of("CartPole-v1", PLAIN, overlaps=True, intervals=9) as (loop, learners):
            if resumed:
                loop.load_state(read_state(read_folder(tmp_path)))
            found.append((list(loop)[-1], weights(learners)))
    assert found[0] == found[1]


def test_arrays_of_a_state_come_back_bit_by_bit(tmp_path: Path) -> None:
    state = {"a": {"b": np.arange(3, dtype=np.int8)}, "c": [1, None, 0.1, "x", np.zeros((0, 2), np.float32)]}
    write_folder(tmp_path, state_contents(state))
    found = read_state(read_folder(tmp_path))
    assert found["a"]["b"].tolist() == [0, 1, 2]
    assert found["a"]["b"].dtype == np.int8
    assert found["c"][:4] == [1, None, 0.1, "x"]
    assert found["c"][4].shape == (0, 2)
