"""Sweeps: the same candidates and returns at any width, interrupted or not; what failed is told and counts as nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import stretto
from tests.training.killed_runs import MARK, dies_early

pytest.importorskip("torch")

from stretto.sweeps.results import SweepReport
from stretto.sweeps.sweep import sweep

SMALL: dict[str, Any] = {"ppo": {"rows": 16, "batch": 32, "epochs": 1}, "evaluation": {"episodes": 2}, "preset": None}
USUAL: dict[str, Any] = {"steps": 64, "seeds": [0, 1], "config": SMALL, "backend": "serial", "num_envs": 2}
OVER: dict[str, Any] = {"ppo.learning_rate": [1e-4, 1e-2], "ppo.epochs": [1, 2]}


class Raises(gymnasium.Wrapper):
    """Raises in its first step."""

    def step(self, action: Any) -> Any:
        raise ValueError("the motor is broken")


def raises() -> gymnasium.Env:
    return Raises(gymnasium.make("CartPole-v1"))


def found(report: SweepReport) -> dict[str, Any]:
    summary = report.summary()
    return {**summary, "mission": ""}


def weights(report: SweepReport) -> dict[tuple[int, int], str]:
    return {
        (one.number, seed): run["agents"]["agent_0"]["weights"]
        for one in report.candidates
        for seed, run in one.runs.items()
    }


def test_a_sweep_is_the_same_in_the_caller_and_in_processes_that_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path / "mark"))
    killed = sweep(dies_early, OVER, tmp_path / "killed", jobs=2, **USUAL)
    assert (tmp_path / "mark").exists()
    here = sweep(dies_early, OVER, tmp_path / "here", jobs=0, **USUAL)
    assert weights(killed) == weights(here)
    assert len(set(weights(here).values())) == 8
    assert found(killed) == found(here)
    assert json.loads((tmp_path / "here" / "summary.json").read_text()) == json.loads(json.dumps(here.summary()))
    page = (tmp_path / "here" / "report.html").read_text()
    assert "What each setting does" in page
    assert f"candidate {here.candidates[0].number}" in page


def test_a_sweep_goes_on_with_what_is_not_over_and_may_have_more_candidates(tmp_path: Path) -> None:
    over = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    whole = sweep("CartPole-v1", over, tmp_path / "whole", candidates=3, jobs=0, **USUAL)
    sweep("CartPole-v1", over, tmp_path / "part", candidates=2, jobs=0, **USUAL)
    kept = tmp_path / "part" / "candidate-0" / "seed-0"
    shutil.rmtree(tmp_path / "part" / "candidate-1" / "seed-1")
    before = (kept / "summary.json").stat().st_mtime_ns
    more = sweep("CartPole-v1", over, tmp_path / "part", candidates=3, resume=True, jobs=0, **USUAL)
    assert weights(more) == weights(whole)
    assert (kept / "summary.json").stat().st_mtime_ns == before


def test_runs_that_raise_are_told_and_are_no_returns(tmp_path: Path) -> None:
    report = sweep(raises, {"ppo.epochs": [1, 2]}, tmp_path / "run", jobs=0, **USUAL)
    assert report.best is None
    assert [one.score for one in report.candidates] == [None, None]
    assert all("the motor is broken" in why for one in report.candidates for why in one.failures.values())
    kept = json.loads((tmp_path / "run" / "candidate-0" / "seed-0" / "failed.json").read_text())
    assert "in step" in kept["traceback"]
    assert "the motor is broken" in (tmp_path / "run" / "report.html").read_text()


def test_a_candidate_that_cannot_be_trained_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(stretto.UsageError, match=r"candidate 1 \(ppo.batch=-4\) cannot be trained: ppo.batch must"):
        sweep("CartPole-v1", {"ppo.batch": [32, -4]}, tmp_path / "new", **USUAL)
    with pytest.raises(stretto.UsageError, match=r"no setting is called ppo\.bach"):
        sweep("CartPole-v1", {"ppo.bach": [32, 64]}, tmp_path / "new", **USUAL)
    assert not (tmp_path / "new").exists()


def test_only_the_same_sweep_is_gone_on_with(tmp_path: Path) -> None:
    sweep("CartPole-v1", {"ppo.epochs": [1, 2]}, tmp_path / "run", jobs=0, **USUAL)
    with pytest.raises(stretto.UsageError, match=r"over\.ppo\.epochs was"):
        sweep("CartPole-v1", {"ppo.epochs": [1, 3]}, tmp_path / "run", resume=True, jobs=0, **USUAL)
    with pytest.raises(stretto.UsageError, match="a sweep that was begun"):
        sweep("CartPole-v1", {"ppo.epochs": [1, 2]}, tmp_path / "run", jobs=0, **USUAL)


def test_optuna_proposes_the_same_at_any_width_and_after_an_interruption(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    over = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
    how = {**USUAL, "engine": "optuna", "candidates": 4, "round_size": 2, "seeds": [0]}
    here = sweep("CartPole-v1", over, tmp_path / "here", jobs=0, **how)
    shutil.copytree(tmp_path / "here", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "candidate-3")
    again = sweep("CartPole-v1", over, tmp_path / "part", jobs=2, resume=True, **how)
    assert weights(again) == weights(here)
    assert found(again) == found(here)
