"""Runs of several seeds, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stretto
from tests.training.killed_runs import MARK, dies_late

pytest.importorskip("torch")

from stretto.training.seeds import train_seeds

SMALL: dict[str, Any] = {"ppo": {"rows": 16, "batch": 32, "epochs": 1}, "checkpoint": {"every": 64}}


def weights(summary: dict[str, Any]) -> list[str]:
    return [run["agents"]["agent_0"]["weights"] for run in summary["runs"].values()]


def test_a_run_whose_process_was_killed_goes_on_and_gives_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv(MARK, str(mark))
    arguments: dict[str, Any] = {"steps": 400, "num_envs": 2, "config": SMALL, "backend": "serial"}
    killed = train_seeds(dies_late, [0, 1], tmp_path / "killed", jobs=2, **arguments)
    assert mark.exists()
    undisturbed = train_seeds(dies_late, [0, 1], tmp_path / "here", jobs=0, **arguments)
    assert weights(killed) == weights(undisturbed)
    assert json.loads((tmp_path / "killed" / "summary.json").read_text())["seeds"] == [0, 1]


def test_seeds_that_are_equal_and_folders_that_are_not_empty_are_refused(tmp_path: Path) -> None:
    with pytest.raises(stretto.UsageError, match=r"all different, got \[1, 1\]"):
        train_seeds("CartPole-v1", [1, 1], tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(stretto.UsageError, match="has something in it"):
        train_seeds("CartPole-v1", [1, 2], tmp_path)
