"""`stretto eval` and what belongs to it, as a user runs them: another process, its two streams and its exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

STRETTO = [sys.executable, "-m", "stretto"]
QUICK = ["-e", "3", "-s", "15"]


def run(*arguments: str, folder: Path | None = None, columns: int = 80) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run(
        [*STRETTO, *arguments], capture_output=True, text=True, timeout=100, env=environment, check=False, cwd=folder
    )


@pytest.mark.parametrize(
    "line",
    [
        "eval -m foundry_1 -p random --cogs 4 --parallel-policy",
        "eval -m foundry_1 -p random --episodes 10 --jobs 4",
        "eval -m foundry_1 -p random --cogs 4 --episodes 10 --jobs 4 --parallel-policy",
    ],
)
def test_the_lines_that_people_know_work_as_they_stand(line):
    done = run(*line.split(), "--steps", "5")
    assert done.returncode == 0, done.stderr
    assert "foundry_1" in done.stdout


def test_json_yaml_and_csv_are_all_that_stdout_has_and_say_the_same():
    def printed(how):
        done = run("eval", "-m", "gym:CartPole-v1", "-p", "random", "-p", "noop", *QUICK, "--format", how)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = json.loads(printed("json"))
    assert [record["label"] for record in told["episodes"]] == ["random"] * 3 + ["noop"] * 3
    assert [r["rewards"] for r in yaml.safe_load(printed("yaml"))["episodes"]] == [
        r["rewards"] for r in told["episodes"]
    ]
    assert len(list(csv.DictReader(io.StringIO(printed("csv"))))) == 6


def test_the_table_fits_and_progress_goes_elsewhere():
    done = run("eval", "-m", "foundry_*", "-p", "random", "-p", "gatherer", "-e", "2", "-s", "3")
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert done.stdout.count("gatherer") == 6
    assert "20 of 20 episodes" in done.stderr
    assert "episodes" not in run("eval", "-m", "foundry_1", "-p", "random", *QUICK, "--quiet").stderr


def test_a_folder_has_records_summary_report_and_films(tmp_path):
    out = tmp_path / "run"
    done = run("eval", "-m", "foundry_1", "-p", "random", *QUICK, "--out", str(out), "--video", "1")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in out.iterdir()}
    assert {"episodes.jsonl", "episodes.csv", "summary.json", "report.html", "videos"} <= names
    assert not any(name.startswith(".") or "partial" in name for name in names)
    assert [path.name for path in (out / "videos").iterdir()] == ["foundry_1-random-0.gif"]
    again = run("eval", "-m", "foundry_1", "-p", "random", *QUICK, "--out", str(out))
    assert again.returncode == 2
    assert "--resume" in again.stderr


def without_timing(path: Path) -> list[str]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [json.dumps({**line, "timing": None}, sort_keys=True) for line in lines]


SLOW = """
import time
from stretto.core import AgentPolicy

class Slow(AgentPolicy):
    def step(self, observation):
        time.sleep(0.02)
        return int(self.rng.integers(2))
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_one_that_is_ended_can_be_gone_on_with_and_gives_what_it_would_have_given(end, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    what = ["eval", "-m", "gym:CartPole-v1", "-p", "slow.py:Slow", "-e", "12", "-s", "20", "-j", "2", "--quiet"]
    whole = run(*what, "--out", "whole", folder=tmp_path)
    assert whole.returncode == 0, whole.stderr
    process = subprocess.Popen(
        [*STRETTO, *what, "--out", "cut"], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    journal = tmp_path / "cut" / "episodes.partial.jsonl"
    while not journal.exists() or journal.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(end)
    output, errors = process.communicate(timeout=30)
    if end is signal.SIGINT:
        assert process.returncode == 130
        assert "--resume cut" in errors
        assert len(errors.splitlines()) <= 3
        assert "slow.py:Slow" in output  # what is finished
    done = journal.read_text().count("\n")
    assert 3 <= done < 12
    resumed = run("eval", "--resume", "cut", "--quiet", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert without_timing(tmp_path / "cut/episodes.jsonl") == without_timing(tmp_path / "whole/episodes.jsonl")


def test_only_the_same_evaluation_can_be_gone_on_with(tmp_path):
    run("eval", "-m", "foundry_1", "-p", "random", *QUICK, "--out", "run", folder=tmp_path)
    done = run("eval", "-m", "foundry_1", "-p", "random", *QUICK, "--seed", "1", "--resume", "run", folder=tmp_path)
    assert done.returncode == 2
    assert "seed was 0" in done.stderr
    assert run("eval", "--resume", "nowhere", folder=tmp_path).returncode == 2


FAULTY = """
def act(observation):
    if observation[0] > 0.02:
        raise ValueError("too far to the right")
    return 0
"""


def test_what_failed_is_shown_with_a_command_that_shows_it_again(tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    done = run("eval", "-m", "gym:CartPole-v1", "-p", "faulty.py:act", *QUICK, "-e", "8", folder=tmp_path)
    assert done.returncode == 1
    assert "too far to the right" in done.stdout
    command = next(line.partition("again: ")[2] for line in done.stdout.splitlines() if "again: " in line)
    again = run(*command.split()[1:], "--format", "json", folder=tmp_path)
    assert again.returncode == 1
    (record,) = json.loads(again.stdout)["episodes"]
    assert "too far to the right" in record["failure"]["traceback"]


def test_missions_policies_and_what_a_mission_is_are_listed():
    missions, policies = run("missions"), run("policies")
    assert all(f"foundry_{i}" in missions.stdout for i in range(1, 6))
    assert all(name in policies.stdout for name in ("random", "noop", "gatherer", "planner", "neural"))
    assert all(len(line) <= 80 for done in (missions, policies) for line in done.stdout.splitlines())
    described = run("describe", "foundry_1", "-c", "2")
    assert "cog_0, cog_1" in described.stdout
    assert "Discrete" in described.stdout


def test_an_episode_can_be_watched():
    done = run("play", "foundry_1", "-p", "gatherer", "-s", "3")
    assert done.returncode == 0, done.stderr
    assert "step 3: cog_0 does" in done.stdout


UNREPRODUCIBLE = """
import gymnasium, os, random

class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.see(0.5), {}
    def see(self, value):
        import numpy as np
        return np.array([value], np.float32)
    def step(self, action):
        self.count += 1
        value = os.urandom(1)[0] / 255 if self.count == 4 else 0.5
        return self.see(value), 0.0, False, self.count == 9, {}

class Restless:
    def __init__(self):
        self.count = 0
    def step(self, observation):
        self.count += 1
        return os.urandom(1)[0] % 2 if self.count > 5 else 0
"""


def test_worlds_and_policies_that_are_not_reproducible_are_found_and_told_apart(tmp_path):
    (tmp_path / "mine.py").write_text(UNREPRODUCIBLE)
    world = run("verify", "mine.py:World", "-p", "noop", folder=tmp_path)
    assert world.returncode == 1
    assert "step 4" in world.stdout
    assert "the world steps differently" in world.stdout
    policy = run("verify", "gym:CartPole-v1", "-p", "mine.py:Restless", "-e", "6", folder=tmp_path)
    assert policy.returncode == 1
    assert "its policy does" in policy.stdout
    good = run("verify", "foundry_1", "-p", "random", "-s", "10", "-e", "2", folder=tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "every bit" in good.stdout


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("eval -p random", "at least one mission"),
        ("eval -m foundry_1", "at least one mission"),
        ("eval -m foundy_1 -p random", "did you mean foundry_1"),
        ("eval -m foundry_1 -p gathrer", "gatherer"),
        ("eval -m foundry_1 -p random -v richh", "rich"),
        ("eval -m foundry_1 -p random --failed never", "exclude or worst"),
        ("eval -m foundry_1 -p random -j many", "whole number or 'auto'"),
        ("eval -m nothing.yaml -p random", "readable YAML"),
    ],
)
def test_bad_input_gets_one_sentence(line, told):
    done = run(*line.split())
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_missions_can_stand_in_a_file(tmp_path):
    (tmp_path / "missions.yaml").write_text(
        "- {mission: foundry_1, name: small, cogs: 2, steps: 4, variants: [rich]}\n- mission: gym:CartPole-v1\n"
    )
    done = run("eval", "-m", "missions.yaml", "-p", "random", "-e", "2", "--format", "json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)["episodes"]
    assert {record["mission"] for record in records} == {"small", "gym:CartPole-v1"}
    assert {record["steps"] for record in records if record["mission"] == "small"} == {4}
    (tmp_path / "bad.yaml").write_text("mission: mine.py:World\n")
    assert "--allow-import" in run("eval", "-m", "bad.yaml", "-p", "random", folder=tmp_path).stderr
