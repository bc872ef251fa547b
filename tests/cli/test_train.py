"""`stretto train`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

from stretto.cli.app import main
from stretto.cli.train_progress import TrainingLines, moving_table, summary_line
from stretto.training.loop import Interval
from stretto.training.progress import TrainingProgress

SHORT = ["--steps", "120", "--envs", "4", "--set", "ppo.rows=16", "--set", "ppo.epochs=1", "--jobs", "0"]

PROCESSES = ["--set", "learner_set=processes"]  # --debug puts it aside


def test_a_run_prints_its_agents_and_writes_its_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", "-m", "foundry_1", "--cogs", "2", *SHORT, "--out", str(out), "--trace"]) == 0
    told = capfd.readouterr()
    assert "cog_1" in told.out
    assert "settings of the preset foundry" in told.err
    assert {"metrics.jsonl", "summary.json", "report.html", "plan.json", "trace.json"} <= {
        p.name for p in out.iterdir()
    }
    assert "command" in json.loads((out / "plan.json").read_text())["timing"]["invocations"][0]
    page = (out / "report.html").read_text()
    assert "<polyline" in page
    assert "cog_1" in page


def test_json_is_the_summary_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["train", "-m", "CartPole-v1", *SHORT, "--format", "json", "--eval-every", "60", "--debug", *PROCESSES])
        == 0
    )
    summary = json.loads(capfd.readouterr().out)
    assert set(summary["agents"]["agent_0"]) == {"return", "updates", "weights"}
    assert summary["evaluation"]["episodes"] == 20


def test_the_settings_that_are_shown_give_the_same_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", "CartPole-v1", *SHORT, "--show-config"]) == 0
    shown = capfd.readouterr().out
    assert yaml.safe_load(shown)["ppo"]["discount"] == 0.98
    (tmp_path / "settings.yaml").write_text(shown)
    agents = []
    for given in (SHORT, ["--config", str(tmp_path / "settings.yaml"), "--jobs", "0"]):
        assert main(["train", "-m", "CartPole-v1", *given, "--format", "json"]) == 0
        agents.append(json.loads(capfd.readouterr().out)["agents"])
    assert agents[0] == agents[1]


def test_several_seeds_are_runs_of_their_own_and_one_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "seeds"
    assert main(["train", "-m", "CartPole-v1", *SHORT, "--seeds", "3..4", "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["seeds"] == [3, 4]
    alone = tmp_path / "alone"
    assert main(["train", "-m", "CartPole-v1", *SHORT, "--seed", "4", "--out", str(alone)]) == 0
    assert json.loads((alone / "summary.json").read_text())["agents"] == summary["runs"]["4"]["agents"]
    assert "over 2 seeds" in (out / "report.html").read_text()
    assert main(["train", "-m", "CartPole-v1", *SHORT, "--seeds", "3..5", "--resume", str(out)]) == 0
    more = json.loads((out / "summary.json").read_text())
    assert more["seeds"] == [3, 4, 5]
    assert more["runs"]["4"]["agents"] == summary["runs"]["4"]["agents"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train"], "a mission (-m) is needed"),
        (["train", "-m", "CartPole-v1", "--set", "ppo.row=3"], "no setting is called ppo.row, got 3"),
        (["train", "-m", "CartPole-v1", "--learner", "pp"], "got 'pp'; did you mean ppo?"),
        (["train", "-m", "CartPole-v1", "--seeds", "0-3", "--out", "x"], "--seeds must be a range or whole numbers"),
        (["train", "-m", "CartPole-v1", "--seeds", "0..3"], "runs of several seeds are kept in a folder"),
        (["train", "-m", "CartPole-v1", "--config", "none.yaml"], "must be a readable YAML file, got none.yaml"),
    ],
)
def test_bad_usage_gets_a_sentence(arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert told in capfd.readouterr().err


def test_progress_says_how_far_it_is_and_what_the_time_was_spent_on(capfd: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = TrainingProgress(clock=lambda: now[0])
    progress.begin(1_000)
    now[0] = 10.0
    seconds = {"observing": 1.0, "acting": 2.0, "stepping": 3.0, "waiting": 0.0, "learning": 4.0}
    metrics = {"a": {"policy_loss": 0.5, "updates": 3.0}}
    progress.add(Interval(1, 250, {"a": [1.0, 3.0]}, metrics=metrics, seconds=seconds))
    assert summary_line(progress) == "250 of 1,000 steps (25 a second) after 10 s, about 30 s left"
    TrainingLines(progress).look()
    told = capfd.readouterr().err
    assert "returns: a 2.00" in told
    assert "learning 40%" in told
    assert moving_table(progress, 80) is not None


def test_a_run_goes_on_by_its_folder_alone_forks_and_is_played(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def agents(*arguments: str) -> Any:
        assert main([*arguments, "--format", "json"]) == 0
        return json.loads(capfd.readouterr().out)["agents"]

    run, fork = str(tmp_path / "run"), str(tmp_path / "fork")
    plain = ["-m", "CartPole-v1", "--set", "preset=null", "--seed", "5"]
    wanted = agents("train", *plain, *SHORT, "--steps", "300")
    agents("train", *plain, *SHORT, "--out", run)
    assert agents("train", "--resume", run, "--steps", "300", "--jobs", "0") == wanted
    assert agents("train", "--resume", run, "--jobs", "2") == wanted  # it is finished: nothing is left to do
    assert main(["train", "--resume", run, "--set", "ppo.epochs=3", "--jobs", "0"]) == 2
    assert "only the same training run can be gone on with, and config.ppo.epochs was 1" in capfd.readouterr().err
    agents("train", "--resume", run, "--out", fork, "--set", "ppo.epochs=3", "--steps", "360", "--jobs", "0")
    agents("train", *plain, *SHORT, "--init-from", run)
    assert main(["eval", "-m", "CartPole-v1", "-p", run, "-p", f"{fork}#agent_0", "-e", "2", "--jobs", "0"]) == 0
    assert "fork#agent_0" in capfd.readouterr().out


def test_what_a_run_cannot_begin_with_is_told_in_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert main(["train", "--resume", nowhere]) == 2
    assert "is resumed from its folder, and" in capfd.readouterr().err
    assert main(["train", "-m", "CartPole-v1", *SHORT, "--init-from", nowhere]) == 2
    assert "weights are taken from the folder of a run" in capfd.readouterr().err
