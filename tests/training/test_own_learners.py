"""Learners that users write for one agent."""

from __future__ import annotations

from pathlib import Path

import pytest

import stretto

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_learner.py"


def weights(world: str, **config: object) -> list[str]:
    settings = {"own": {"rows": 16}, **config}
    report = stretto.train(world, f"{EXAMPLE}:Reinforce", steps=300, num_envs=4, backend="serial", config=settings)
    return [one.weights for one in report.agents.values()]


def test_a_learner_of_ones_own_gives_the_same_weights_wherever_it_learns() -> None:
    assert weights("CartPole-v1", learner_set="processes") == weights("CartPole-v1")


def test_a_learner_of_ones_own_must_be_at_the_top_of_a_file() -> None:
    class Hidden:
        pass

    with pytest.raises(stretto.errors.UsageError, match="at the top of a file"):
        stretto.train("CartPole-v1", Hidden, steps=100)


def test_an_unknown_learner_is_refused_with_the_ones_that_there_are() -> None:
    with pytest.raises(stretto.errors.UsageError, match=r"one of ppo.*file\.py:NAME"):
        stretto.train("CartPole-v1", "poo", steps=100)
