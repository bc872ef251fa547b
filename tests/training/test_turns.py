"""Who learns where not everybody can in every interval, and what becomes of a learner that fails."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import stretto
from stretto.training.turns import LearningTurns

pytest.importorskip("torch")

from stretto.safetensors import read_safetensors
from stretto.training.learners.failures import LearnerFailed


def test_whoever_has_waited_longest_learns_next() -> None:
    turns = LearningTurns(["a", "b", "c"], 1)
    assert [next(iter(turns.next())) for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_a_priority_of_ones_own_decides_who_learns() -> None:
    turns = LearningTurns(["a", "b", "c"], 1, lambda agent, waited: waited if agent != "a" else 10)
    assert [next(iter(turns.next())) for _ in range(3)] == ["a", "a", "a"]


def test_without_a_limit_everybody_learns() -> None:
    assert LearningTurns(["a", "b"], None).next() == {"a", "b"}


@pytest.mark.parametrize("learner", ["ppo", "dqn"])
def test_the_summary_says_how_many_updates_each_agent_had(learner: str) -> None:
    config = {
        "learners_an_interval": 1,
        "ppo": {"rows": 8, "batch": 32, "epochs": 1},
        "dqn": {"rows": 8, "batch": 32, "updates": 1, "learning_starts": 1},
    }
    report = stretto.train("foundry_1", learner, cogs=2, steps=128, num_envs=4, backend="serial", config=config)
    assert {one.updates for one in report.agents.values()} == {2}


class Broken(gymnasium.Env):
    """Gives a reward that is no number after some steps."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), float("nan") if self.steps == 30 else 0.0, False, self.steps == 40, {}


def test_a_loss_that_is_not_finite_names_agent_and_update_and_keeps_the_batch(tmp_path) -> None:
    config = {"ppo": {"rows": 16, "batch": 32, "epochs": 1}}
    with pytest.raises(LearnerFailed, match="learner of agent_0 failed in update 2: its loss is not finite") as caught:
        stretto.train(Broken, "ppo", steps=500, num_envs=2, backend="serial", config=config, out=tmp_path / "run")
    batch = read_safetensors(tmp_path / "run" / "failed_agent_0_2.safetensors")
    assert np.isnan(batch["experience.returns"]).any()
    assert any("the batch is in" in note for note in caught.value.__notes__)
