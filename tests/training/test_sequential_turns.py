"""Agents that learn in sequential turns: the same weights, whether they are asked before it is their turn or not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import stretto
from tests.evaluation.test_lost_processes import workers

pytest.importorskip("torch")

NETWORK = {"widths": [16], "memory": "gru"}
SMALL: dict[str, Any] = {
    "ppo": {"rows": 8, "batch": 32, "epochs": 1, "sequence": 4, "network": NETWORK},
    "dqn": {"rows": 8, "batch": 16, "updates": 1, "learning_starts": 16},
}


def trained(turns: str, learner: str = "ppo", loop: str = "sync", **options: Any) -> stretto.TrainingReport:
    config = {**SMALL, "turns": turns, "loop": loop}
    given: dict[str, Any] = {"cogs": 4, "steps": 128, "num_envs": 4, "max_steps": 50, "backend": "serial", "seed": 2}
    return stretto.train("foundry_1", learner, config=config, **{**given, **options})


def weights(report: stretto.TrainingReport) -> dict[str, str]:
    return {agent: one.weights for agent, one in report.agents.items()}


@pytest.mark.parametrize("learner", ["ppo", "dqn"])
def test_weights_are_those_of_sequential_turns(learner: str) -> None:
    expected = trained("sequential", learner)
    for turns in ("speculative", "auto"):
        found = trained(turns, learner)
        assert weights(found) == weights(expected)
        assert found.steps == expected.steps
    assert weights(trained("simultaneous", learner)) != weights(expected)


@pytest.mark.parametrize(
    "options", [{"backend": "process", "workers": 2}, {"backend": "thread", "workers": 2}], ids=str
)
def test_on_every_backend_weights_are_those_of_sequential_turns(options: dict[str, Any]) -> None:
    assert weights(trained("speculative", **options)) == weights(trained("sequential"))


def test_while_others_learn_weights_are_those_of_sequential_turns() -> None:
    expected = trained("sequential", "dqn", "pipelined")
    assert weights(trained("speculative", "dqn", "pipelined", backend="process", workers=2)) == weights(expected)
    assert weights(expected) != weights(trained("sequential", "dqn"))


def test_killed_workers_change_no_weight() -> None:
    killed = []

    def kill(_: Any) -> None:
        for pid in [one for one in workers() if one not in killed][:1]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    found = trained("speculative", backend="process", workers=2, isolate=True, on_interval=kill)
    assert killed
    assert weights(found) == weights(trained("sequential"))


def test_a_run_that_was_begun_in_one_way_goes_on_in_another(tmp_path: Path) -> None:
    expected = trained("sequential", steps=256)
    trained("sequential", out=tmp_path / "run")
    found = trained("speculative", steps=256, out=tmp_path / "run", resume=True)
    assert weights(found) == weights(expected)


def test_metrics_count_turns_rounds_and_conflicts(tmp_path: Path) -> None:
    trained("speculative", out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["timing"]["turns"] for row in rows) == rows[-1]["steps"]
    for timing in (row["timing"] for row in rows):
        assert timing["turns"] < timing["rounds"] < 4 * timing["turns"]
        assert timing["conflicts"] > 0
