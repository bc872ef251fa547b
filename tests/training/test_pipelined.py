"""`loop: pipelined` as users meet it: one result for every way to compute it, and runs that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import stretto
from stretto.errors import UsageError

PPO = {"rows": 16, "batch": 32, "epochs": 2, "most_divergence": 0.01}


def trained(config: dict[str, Any] | None = None, **changes: Any) -> stretto.TrainingReport:
    settings = {"preset": None, "ppo": PPO, "loop": "pipelined", "checkpoint": {"every": None}, **(config or {})}
    given: dict[str, Any] = {"steps": 400, "num_envs": 4, "seed": 7, "cogs": 3, "backend": "serial", **changes}
    return stretto.train("foundry_1", config=settings, **given)


@pytest.fixture(scope="module")
def wanted() -> stretto.TrainingReport:
    """What comes of it in one thread."""
    return trained({"parallel": {"enabled": False}})


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"loop": None, "parallel": {"async_learning": True}}, "budget": 2},
        {"config": {"learner_set": "threads", "block": 2}},
        {"config": {"learner_set": "processes", "block": 2}, "backend": "process", "workers": 2},
        {"config": {"learner_set": "sequential"}, "backend": "process", "workers": 3},
    ],
    ids=["async_learning", "threads", "processes", "one by one"],
)
def test_weights_are_the_same_however_it_is_computed(changes: dict[str, Any], wanted: stretto.TrainingReport) -> None:
    given = {**changes, "budget": stretto.CpuBudget(changes.get("budget", 4))}
    found = trained(**given)
    assert found.agents == wanted.agents
    assert [row["agents"] for row in found.history] == [row["agents"] for row in wanted.history]


def test_it_is_not_what_sync_gives(wanted: stretto.TrainingReport) -> None:
    assert trained({"loop": "sync"}).agents != wanted.agents


def test_a_run_goes_on_with_the_same_loop_alone(tmp_path: Path, wanted: stretto.TrainingReport) -> None:
    trained(steps=150, out=tmp_path / "run")
    with pytest.raises(UsageError, match="loop"):
        trained({"loop": "sync"}, out=tmp_path / "run", resume=True)
    assert trained(out=tmp_path / "run", resume=True).agents == wanted.agents


@pytest.mark.parametrize(("cores", "taken"), [(1, 1), (2, 3), (4, 4)])
def test_worlds_leave_learners_a_core_where_there_are_more_than_two(cores: int, taken: int) -> None:
    budget, seen = stretto.CpuBudget(cores), set[int]()
    found = trained(cogs=1, backend="process", budget=budget, on_interval=lambda _: seen.add(budget.taken))
    assert seen == {taken}
    assert budget.taken == 0
    assert found.agents == trained({"parallel": {"enabled": False}}, cogs=1).agents
