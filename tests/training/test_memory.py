"""Networks with a memory: what PPO unrolls is what the actor went through, across ends and segments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stretto

torch = pytest.importorskip("torch")

from stretto.collection.collector import Collector, Trials  # noqa: E402
from stretto.collection.experience import Segment  # noqa: E402
from stretto.collection.worlds import BlockWorlds  # noqa: E402
from stretto.errors import UsageError  # noqa: E402
from stretto.policies.block_runner import BlockRunner  # noqa: E402
from stretto.policies.networks.network import NetworkSettings  # noqa: E402
from stretto.training.blocks import learner_blocks  # noqa: E402
from stretto.training.learners.ppo import Ppo  # noqa: E402
from stretto.training.learners.ppo_settings import PpoSettings  # noqa: E402
from stretto.training.sequences import Sequences  # noqa: E402

ROWS, LANES = 24, 4


def settings_of(memory: Any) -> PpoSettings:
    network = NetworkSettings((32,), memory=memory, memory_width=20)
    return PpoSettings(rows=ROWS, batch=32, epochs=1, sequence=8, network=network)


@pytest.fixture(params=["gru", "lstm"])
def learner(request: Any) -> Iterator[Ppo]:
    with stretto.make_vec("CartPole-v1", LANES, backend="serial") as envs:
        yield Ppo(learner_blocks(BlockWorlds(envs).kinds, 1, LANES)[0], settings_of(request.param))


def segments_of(learner: Ppo, count: int, episodes: int = 1) -> list[Segment]:
    with stretto.make_vec("CartPole-v1", LANES, backend="serial", copy=False) as envs:
        worlds = BlockWorlds(envs)
        collector = Collector(worlds, BlockRunner([learner.policy], LANES), {"agent_0": 0})
        segments = collector.segments(ROWS, Trials(3, episodes=episodes))
        return [next(segments) for _ in range(count)]


def unrolled(learner: Ppo, segments: list[Segment]) -> Any:
    """Return the outputs for what was seen in consecutive segments and after them: (towers, rows, lanes, width)."""
    network = learner.policy.network

    def joined(name: str) -> Any:
        parts = [getattr(segment.kinds[0], name) for segment in segments]
        whole = np.concatenate([part["memory"] if name == "says" else part for part in parts])
        return np.moveaxis(whole, 2, 0)

    seen = np.concatenate([joined("observations"), np.moveaxis(segments[-1].following[0], 1, 0)[:, None]], 1)
    acted, memory = joined("acted"), joined("says")
    whole = Sequences(acted, acted.shape[1], memory).whole()
    assert whole is not None
    with torch.no_grad():
        rows = network.inputs.rows(seen).flatten(1, 2)
        return network.towers(whole.seen(network, rows))[0].view(2, -1, LANES, 8)


def test_a_segment_is_unrolled_from_the_state_that_the_actor_had(learner: Ppo) -> None:
    first, second = segments_of(learner, 2)
    known = second.kinds[0].acted[..., 0].copy()
    ended = second.kinds[0].terminated[:-1, :, 0]
    assert ended.any()
    known[1:] |= ended  # rows with last observations, whose values count after a time limit
    both, alone = unrolled(learner, [first, second]), unrolled(learner, [second])
    torch.testing.assert_close(both[:, ROWS:-1][:, known], alone[:, :-1][:, known])
    torch.testing.assert_close(both[:, -1], alone[:, -1])


@pytest.mark.parametrize("episodes", [1, 2])
def test_an_actor_remembers_through_the_episodes_of_a_trial_and_begins_the_next_one_with_nothing(
    learner: Ppo, episodes: int
) -> None:
    segments = [segment.kinds[0] for segment in segments_of(learner, 4, episodes)]
    seen, acted, ended, memory = (
        np.concatenate(parts)[:, :, 0]
        for parts in zip(
            *((one.observations, one.acted, one.terminated, one.says["memory"]) for one in segments), strict=True
        )
    )
    empty = acted & ~memory.any(-1)
    begins = np.zeros_like(acted)
    begins[0], begins[2:] = True, ended[:-2]
    assert (empty <= begins).all()
    assert (empty == begins).all() == (episodes == 1)
    network = learner.policy.network
    with torch.no_grad():
        rows = network.inputs.rows(seen)
        for row in range(len(rows) - 1):
            _, after = network.see(rows[None, row], torch.from_numpy(memory[None, row]))
            assert after is not None
            goes_on = acted[row] & acted[row + 1]
            np.testing.assert_allclose(after[0].numpy()[goes_on], memory[row + 1][goes_on], rtol=1e-4, atol=1e-6)


def test_rows_and_batches_that_no_whole_sequences_fit_into_are_refused() -> None:
    with stretto.make_vec("CartPole-v1", LANES, backend="serial") as envs:
        block = learner_blocks(BlockWorlds(envs).kinds, 1, LANES)[0]
        with pytest.raises(UsageError, match="multiples of sequence, got rows=20"):
            Ppo(block, PpoSettings(rows=20, sequence=8, network=NetworkSettings(memory="gru")))
