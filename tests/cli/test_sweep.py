"""`stretto sweep`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from stretto.cli.app import main
from stretto.cli.sweep_progress import sweep_line
from stretto.sweeps.progress import SweepProgress
from stretto.sweeps.results import Candidate

SHORT = ["--steps", "64", "--envs", "2", "--seeds", "0,1", "--jobs", "0", "--quiet", "--set", "evaluation.episodes=2"]
SMALL = ["--set", "ppo.rows=16", "--set", "ppo.batch=32", "--set", "ppo.epochs=1"]
RATES = ["--over", "ppo.learning_rate=log:1e-4..1e-2", "--candidates", "2"]


def test_a_sweep_prints_its_candidates_the_best_first_and_writes_a_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    over = ["--over", "ppo.learning_rate=1e-4,1e-2"]
    assert main(["sweep", "-m", "CartPole-v1", *SHORT, *SMALL, *over, "--out", str(out)]) == 0
    told = capfd.readouterr()
    assert "2 candidates, 2 seeds, engine grid" in told.out
    assert f"report: {out / 'report.html'}" in told.err
    summary = json.loads((out / "summary.json").read_text())
    scores = [one["iqm"] for one in summary["candidates"]]
    assert scores == sorted(scores, reverse=True)
    assert "<svg" in (out / "report.html").read_text()
    best = f"{out}/candidate-{summary['best']}/seed-0"
    assert main(["eval", "-m", "CartPole-v1", "-p", best, "--episodes", "2", "--jobs", "0", "--quiet"]) == 0


def test_a_sweep_goes_on_with_resume_alone_and_more_candidates(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "sweep")
    assert main(["sweep", "-m", "CartPole-v1", *SHORT, *SMALL, *RATES, "--out", out]) == 0
    capfd.readouterr()
    again = ["--resume", out, "--candidates", "3", "--jobs", "0", "--quiet", "--format", "json"]
    assert main(["sweep", *again]) == 0
    assert sorted(one["number"] for one in json.loads(capfd.readouterr().out)["candidates"]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "kept in one folder, got --out None and --resume None"),
        (["--out", "new"], "varies one setting or more, got none"),
        (["--out", "new", "--over", "ppo.batch=64"], "two or more values of ppo.batch"),
        (["--out", "new", "--over", "ppo.batsh=64,128"], "no setting is called ppo.batsh"),
        (["--out", "new", "--over", "ppo.rows=8..64"], "how many candidates to try, got None"),
        (["--out", "new", "--over", "ppo.rows=8,16", "--engine", "magic"], "an engine is one of grid, random, optuna"),
    ],
)
def test_bad_usage_is_one_sentence_and_leaves_no_folder(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "-m", "CartPole-v1", *SHORT, *arguments]) == 2
    assert told in capfd.readouterr().err
    assert not (tmp_path / "new").exists()


def test_progress_says_how_many_runs_are_over_and_what_is_best() -> None:
    progress = SweepProgress()
    progress.begin(Path("sweep"), 4, 100)
    run = {"agents": {"a": {"return": 7.5}}}
    progress.add(Candidate.of(0, {"ppo.batch": 64}, {0: run, 1: run}))
    progress.add(Candidate.of(1, {"ppo.batch": 32}, {0: run, 1: "ValueError: the motor is broken"}))
    progress.ended(Path("sweep/candidate-0/seed-0"))
    assert sweep_line(progress) == "1 of 4 runs; 1 candidate failed; best so far: 7.50 with ppo.batch=64"
