"""TensorBoard and Weights & Biases are told the figures of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stretto

pytest.importorskip("torch")

from stretto.training import trackers

SMALL: dict[str, Any] = {"ppo": {"rows": 16, "batch": 32, "epochs": 1}}


def trained(out: Path | None, **tracking: Any) -> stretto.TrainingReport:
    config = {**SMALL, "tracking": tracking}
    return stretto.train("CartPole-v1", steps=200, num_envs=4, config=config, out=out, backend="serial")


def test_tensorboard_has_the_figures_of_every_interval(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    report = trained(tmp_path / "run", tensorboard=True)
    events = accumulators.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    told = [(one.step, one.value) for one in events.Scalars("agent_0/entropy")]
    kept = [(row["steps"], row["agents"]["agent_0"]["entropy"]) for row in report.history]
    assert [step for step, _ in told] == [step for step, _ in kept]
    assert [value for _, value in told] == pytest.approx([value for _, value in kept])


def test_weights_and_biases_keeps_a_run_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    # In a process of its own: it leaves a service behind that ends with its process.
    run = ["train", "-m", "CartPole-v1", "--steps", "100", "--jobs", "0", "--out", str(tmp_path / "run")]
    subprocess.run([sys.executable, "-m", "stretto", *run, "--set", "tracking.wandb=project"], check=True)
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_a_tracker_that_is_not_there_or_has_no_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(stretto.UsageError, match=r"tracking\.tensorboard writes into the folder of a run, got none"):
        trained(None, tensorboard=True)
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(stretto.UsageError, match=r"needs wandb, .* pip install 'stretto\[wandb\]'"):
        trained(tmp_path / "run", wandb="project")
    assert not (tmp_path / "run").exists()
