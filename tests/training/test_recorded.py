"""Agents that learn from recorded rollouts: what others did, read by a number of readers, in place of worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import stretto

torch = pytest.importorskip("torch")

from stretto.collection.rollouts import Rollouts  # noqa: E402
from stretto.core import AgentKind  # noqa: E402
from stretto.training.learners.bc import Cloning  # noqa: E402
from stretto.training.learners.bc_settings import BcSettings  # noqa: E402
from stretto.training.phases import Phases  # noqa: E402
from stretto.training.recorded import Recorded  # noqa: E402
from tests.training.fixed_experience import block_of, learn, piece_of  # noqa: E402

FIVE, CHOICE, NUMBERS = spaces.Box(-1, 1, (5,)), spaces.Discrete(3), spaces.Box(-2, 3, (3,))
SMALL: dict[str, Any] = {
    "num_envs": 4,
    "backend": "serial",
    "config": {"bc": {"rows": 32, "batch": 32}, "preset": None},
}


class Balances(stretto.AgentPolicy):
    """Keeps CartPole upright: pushes to where the pole falls."""

    def step(self, observation: Any) -> int:
        return int(observation[2] + 0.5 * observation[3] + 0.05 * observation[1] > 0)


@pytest.fixture(scope="module")
def balanced() -> Rollouts:
    return stretto.collect("CartPole-v1", Balances, 12, seed=0, max_steps=200, backend="serial")


def read(rollouts: Rollouts, count: int, rows: int, segments: int, *, again_after: int | None = None) -> list[Any]:
    """Return segments; those after some of them are read by another, which goes on from the state of the first."""
    kinds = [AgentKind(("agent_0",), FIVE_OF_CARTPOLE, spaces.Discrete(2))]
    side = Recorded(rollouts, kinds, count, seed=3)
    side.begin(None, rows, Phases("learning"), None)  # type: ignore[arg-type]
    found = []
    for number in range(segments):
        if number == again_after:
            state = side.state()
            side = Recorded(rollouts, kinds, count, seed=3)
            side.begin(None, rows, Phases("learning"), None)  # type: ignore[arg-type]
            side.restore(state)
        found.append(side.collect())
    return found


FIVE_OF_CARTPOLE = spaces.Box(-np.inf, np.inf, (4,), np.float32)


def test_readers_give_every_row_once_in_a_pass_and_what_follows_is_the_next_row(balanced: Rollouts) -> None:
    steps = int(balanced.lengths.sum())
    segments = read(balanced, 1, steps + len(balanced), 2)
    for segment in segments:
        kind = segment.kinds[0]
        assert int(kind.acted.sum()) == steps
        assert float(kind.rewards.sum()) == float(balanced.returns.sum())
        assert int((kind.terminated | kind.truncated).sum()) == len(balanced)
    first, second = (segment.kinds[0].observations for segment in segments)
    assert np.array_equal(segments[0].following[0][0], second[0, 0])
    assert not np.array_equal(first, second)  # each pass has an order of its own


def test_readers_go_on_from_a_state_as_if_nothing_had_happened(balanced: Rollouts) -> None:
    whole, parted = read(balanced, 3, 50, 9), read(balanced, 3, 50, 9, again_after=4)
    for one, other in zip(whole, parted, strict=True):
        assert np.array_equal(one.kinds[0].observations, other.kinds[0].observations)
        assert np.array_equal(one.kinds[0].acted, other.kinds[0].acted)
        assert np.array_equal(one.following[0], other.following[0])


def test_an_agent_learns_to_do_what_was_done(balanced: Rollouts) -> None:
    report = stretto.train("CartPole-v1", "bc", data=balanced, steps=20_000, eval_every=20_000, **SMALL)
    assert report.evaluations[-1]["return"] > 450  # what balances by itself for 500 steps was seen for 200 of them
    losses = [row["agents"]["agent_0"]["loss"] for row in report.history]
    assert losses[-1] < 0.25 * losses[0]


def test_a_run_that_reads_goes_on_to_the_weights_of_an_undisturbed_one(balanced: Rollouts, tmp_path: Path) -> None:
    balanced.save(tmp_path / "data")
    given = {"data": str(tmp_path / "data"), **SMALL}
    whole = stretto.train("CartPole-v1", "bc", steps=1_000, **given)
    stretto.train("CartPole-v1", "bc", steps=500, out=tmp_path / "run", **given)
    rest = stretto.train("CartPole-v1", "bc", steps=1_000, out=tmp_path / "run", resume=True, **given)
    assert rest.agents["agent_0"].weights == whole.agents["agent_0"].weights
    with pytest.raises(stretto.UsageError, match="data was '12 rollouts"):
        stretto.train("CartPole-v1", "bc", steps=2_000, out=tmp_path / "run", resume=True, data=balanced[:5], **SMALL)


def test_learning_from_recordings_is_the_same_while_reading_in_another_process(balanced: Rollouts) -> None:
    config = {**SMALL["config"], "loop": "pipelined"}
    found = [
        stretto.train("CartPole-v1", "bc", steps=600, data=balanced, **{**SMALL, "config": {**config, **more}})
        for more in ({"learner_set": "processes"}, {"parallel": {"enabled": False}})
    ]
    assert len({report.agents["agent_0"].weights for report in found}) == 1


def test_dqn_learns_from_recordings(balanced: Rollouts) -> None:
    config = {"dqn": {"rows": 32, "learning_starts": 100, "updates": 2}, "preset": None}
    report = stretto.train("CartPole-v1", "dqn", data=balanced, steps=1_000, **{**SMALL, "config": config})
    assert report.agents["agent_0"].updates > 0


@pytest.mark.parametrize("done", [CHOICE, NUMBERS], ids=["choices", "numbers"])
def test_agents_that_clone_in_one_block_are_to_the_bit_what_they_are_alone(done: Any) -> None:
    def learned(agents: list[int]) -> dict[int, Any]:
        learner = Cloning(block_of(agents, FIVE, done), BcSettings(rows=32))
        for number in range(2):
            learn(learner, [piece_of(learner, agent, number, 32) for agent in agents])
        return {agent: mine[0] for agent, mine in zip(agents, learner.weights(), strict=True)}

    together = learned([0, 1, 2])
    for agent in range(3):
        assert np.array_equal(together[agent], learned([agent])[agent])


def test_the_numbers_that_were_done_become_the_most_likely_ones() -> None:
    learner = Cloning(block_of([0], FIVE, NUMBERS), BcSettings(rows=32, learning_rate=_rate(1e-2)))
    draw = np.random.default_rng(0)
    matrix = draw.uniform(-0.5, 0.5, (5, 3))
    for number in range(60):
        piece = piece_of(learner, 0, number, 32)
        piece.actions[...] = 0.5 + np.tanh(piece.observations @ matrix)
        learn(learner, [piece])
    seen = draw.standard_normal((1, 64, 5)).astype(np.float32)
    learner.policy.greedy = True
    found = learner.policy.step_block(seen, None, None).actions  # type: ignore[arg-type]
    assert np.abs(found - (0.5 + np.tanh(seen @ matrix))).mean() < 0.15


def _rate(value: float) -> Any:
    from stretto.training.schedules import Schedule

    return Schedule(value)


def test_what_cannot_be_learned_from_is_refused(balanced: Rollouts, tmp_path: Path) -> None:
    with pytest.raises(stretto.UsageError, match="bc learns from recorded rollouts, got none"):
        stretto.train("CartPole-v1", "bc", steps=100)
    with pytest.raises(stretto.UsageError, match="only bc, dqn, sac learn from recorded rollouts, got ppo"):
        stretto.train("CartPole-v1", "ppo", steps=100, data=balanced)
    with pytest.raises(stretto.UsageError, match=r"it has Box.*, got float32 arrays of shape \(4,\)"):
        stretto.train("Acrobot-v1", "bc", steps=100, data=balanced, **SMALL)
    with pytest.raises(stretto.UsageError, match="its agents are cog_0, cog_1, got rollouts of agent_0"):
        stretto.train("foundry_1", "bc", steps=100, cogs=2, data=balanced, **SMALL)
    with pytest.raises(stretto.UsageError, match="one rollout or more, got none"):
        stretto.train("CartPole-v1", "bc", steps=100, data=[], **SMALL)
    with pytest.raises(stretto.UsageError, match=r"got int; pass what stretto\.collect"):
        stretto.train("CartPole-v1", "bc", steps=100, data=7, **SMALL)
    with pytest.raises(stretto.UsageError, match=r"what an agent remembered, got network\.memory=gru"):
        config = {"bc": {"network": {"memory": "gru"}}, "preset": None}
        stretto.train("CartPole-v1", "bc", steps=100, data=balanced, **{**SMALL, "config": config})
