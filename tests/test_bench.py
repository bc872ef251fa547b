"""The race behind `stretto bench`: it measures what it says, and the plain loop does what Gymnasium's does."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest

import stretto
from stretto import UsageError
from stretto.bench import BACKENDS, PLAIN_LOOP, PlainLoop, RaceResult, RaceRow, _MultiAgentVector, race, verdict
from stretto.budget import CpuBudget
from stretto.missions.resolve import makers


@pytest.mark.parametrize("world", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1"])
def test_the_plain_loop_gives_what_a_sync_vector_env_gives(world):
    makers = [partial(gymnasium.make, world)] * 3
    plain, sync = PlainLoop(makers), gymnasium.vector.SyncVectorEnv(makers)
    sync.reset(seed=0)
    over, real = np.zeros(3, bool), 0
    for actions in plain.action_batches(16) * 10:
        observations, rewards, terminated, truncated, _ = sync.step(actions)
        real = plain.step(actions)
        leaves = observations if isinstance(observations, tuple) else (observations,)
        for ours, theirs in zip(plain.observations, leaves, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(plain.rewards, rewards)
        np.testing.assert_array_equal(plain.terminated, terminated)
        np.testing.assert_array_equal(plain.truncated, truncated)
        assert real == 3 - np.count_nonzero(over)
        over = terminated | truncated
    plain.close()
    sync.close()


def test_a_race_has_a_row_for_the_plain_loop_and_each_backend():
    heard: list[float] = []
    result = race("CartPole-v1", 4, seconds=0.05, budget=CpuBudget(2), on_progress=heard.append)
    assert [row.name for row in result.rows] == [PLAIN_LOOP, *BACKENDS]
    assert result.rows[0].ratio == 1.0
    assert all(row.share == pytest.approx(row.ratio / 2) for row in result.rows)
    assert result.step_seconds == pytest.approx(1 / result.rows[0].steps_per_second)
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


def measured(**ratios):
    rows = [RaceRow(name.replace("_", " "), 1e5 * ratio, ratio, ratio / 2, "") for name, ratio in ratios.items()]
    return RaceResult("a world", 64, 2, 1e-5, tuple(rows))


def test_what_the_race_showed_of_the_choice_is_said_and_never_the_opposite_of_the_table():
    said = verdict(measured(plain_loop=1.0, serial=0.88, process=0.4, auto=0.35))
    assert said.startswith("Measured again in this race, it ran at 0.35 times the speed of the plain loop")
    assert said.endswith("If that is how this machine is, use a plain loop.")
    assert "backend='serial'" in verdict(measured(plain_loop=1.0, serial=1.2, auto=0.9))
    good = verdict(measured(plain_loop=1.0, serial=1.1, process=1.72, auto=1.70))
    assert good == "Measured again in this race, it ran at 1.70 times the speed of the plain loop."
    assert verdict(measured(plain_loop=1.0, serial=1.1)) is None


def test_every_contender_may_use_all_cores_although_the_others_are_there():
    result = race("Acrobot-v1", 64, seconds=0.05, budget=CpuBudget(2))
    assert "2 workers" in {row.name: row.choice for row in result.rows}["process"]
    assert "only one core" not in {row.name: row.choice for row in result.rows}["auto"]


@pytest.mark.parametrize(("num_envs", "seconds"), [(0, 1.0), (-1, 1.0), (2, 0.0), (2, -1.0), (2, float("nan"))])
def test_numbers_that_cannot_work_are_refused(num_envs, seconds):
    with pytest.raises(UsageError, match="got"):
        race("CartPole-v1", num_envs, seconds=seconds)


def test_a_race_of_any_callable_is_named_after_it():
    def pole() -> gymnasium.Env:
        return gymnasium.make("CartPole-v1")

    assert race(pole, 1, seconds=0.02, backends=("serial",)).world == "pole"


def test_worlds_with_several_agents_take_the_same_steps_in_the_plain_loop_and_in_ours():
    made = makers("foundry_1", 3, {"max_steps": 5})
    plain = PlainLoop(made)
    batches = plain.action_batches(4)
    with stretto.make_vec(made, 3, backend="serial", copy=False) as envs:
        ours = _MultiAgentVector(envs, batches)
        for batch in batches * 5:
            assert ours.step(batch) == plain.step(batch)
            np.testing.assert_array_equal(envs.alive.blocks[0], plain.observations[1])
    plain.close()
    assert race("foundry_1", 2, seconds=0.01, backends=("serial",), variants=["sprint"]).rows[1].steps_per_second > 0
