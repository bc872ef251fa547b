"""Who learns where not everybody can in every interval."""

from __future__ import annotations

import pytest

import stretto
from stretto.training.turns import LearningTurns

pytest.importorskip("torch")


def test_whoever_has_waited_longest_learns_next() -> None:
    turns = LearningTurns(["a", "b", "c"], 1)
    assert [next(iter(turns.next())) for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_a_priority_of_ones_own_decides_who_learns() -> None:
    turns = LearningTurns(["a", "b", "c"], 1, lambda agent, waited: waited if agent != "a" else 10)
    assert [next(iter(turns.next())) for _ in range(3)] == ["a", "a", "a"]


def test_who_is_stopped_has_no_turn_and_takes_none_from_others() -> None:
    turns = LearningTurns(["a", "b", "c"], 1)
    turns.stop("b")
    assert [next(iter(turns.next())) for _ in range(4)] == ["a", "c", "a", "c"]
    turns.stop("a")
    assert turns.next() == {"c"}
    assert not turns.over
    turns.stop("c")
    assert turns.over


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


def last_first(agent: str, waited: int) -> float:
    return float(agent.removeprefix("cog_"))


def test_a_function_of_ones_own_says_who_learns_in_a_run() -> None:
    config = {"learners_an_interval": 1, "priority": f"{__file__}:last_first", "ppo": {"rows": 8, "epochs": 1}}
    report = stretto.train("foundry_1", cogs=3, steps=128, num_envs=4, backend="serial", config=config)
    assert [one.updates > 0 for one in report.agents.values()] == [False, False, True]
    for name, told in (("nobody", "priority must be staleness, file.py:NAME"), (f"{__file__}:none", "does not have")):
        with pytest.raises(stretto.UsageError, match=told):
            stretto.train("CartPole-v1", steps=10, backend="serial", config={"priority": name})
