"""`--turns`: what it changes, where it is kept, and what refuses it."""

from __future__ import annotations

import json
import shlex

import pytest

from stretto.cli.app import main

GAME = """
from tests.worlds import Timetable


class Game(Timetable):
    def __init__(self):
        super().__init__("ab ac-abc")


class Counts:
    def step(self, observation):
        return int(observation[1])


class Fails(Counts):
    def step(self, observation):
        if observation[1] > 0:
            raise ValueError("somebody has acted before me")
        return 0
"""
SEQUENTIAL = ["--turns", "sequential"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "game.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def evaluated(capsys, *arguments, policy="Counts"):
    code = main(["eval", "-m", "game.py:Game", "-p", f"game.py:{policy}", "-e", "1", "--format", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("jobs", ["0", "1"])
def test_the_mode_decides_what_an_evaluation_gives_and_is_told_with_it(capsys, jobs):
    _, together = evaluated(capsys, "--jobs", jobs)
    _, in_turn = evaluated(capsys, "--jobs", jobs, *SEQUENTIAL)
    assert together["episodes"][0]["rewards"] == {"a": 3, "b": 3, "c": 3}
    assert in_turn["episodes"][0]["rewards"] == {"a": 3, "b": 103, "c": 103}


def test_the_folder_keeps_the_mode_and_an_evaluation_goes_on_in_it(capsys, folder):
    here = ["--jobs", "0", "--format", "json"]
    asked = ["-m", "game.py:Game", "-p", "game.py:Counts", "-e", "2", *SEQUENTIAL]
    assert main(["eval", *asked, "--only", "0", "--out", "run", *here]) == 0
    assert json.loads((folder / "run" / "arguments.json").read_text())["turns"] == "sequential"
    capsys.readouterr()
    assert main(["eval", "--resume", "run", "--only", "1", *here]) == 0
    assert [one["rewards"]["b"] for one in json.loads(capsys.readouterr().out)["episodes"]] == [103, 103]
    assert main(["eval", "--resume", "run", "--turns", "simultaneous", *here]) == 2
    assert "turns" in capsys.readouterr().err


def test_the_command_that_plays_a_failure_again_has_the_mode(capsys):
    code, report = evaluated(capsys, *SEQUENTIAL, "--jobs", "0", policy="Fails")
    failure = report["episodes"][0]["failure"]
    assert (code, failure["agent"]) == (1, "b")
    assert "--turns sequential" in failure["reproduce"]
    assert main([*shlex.split(failure["reproduce"])[1:], "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["episodes"][0]["failure"]["message"] == failure["message"]
    code, report = evaluated(capsys, "--jobs", "0", policy="Fails")
    assert (code, report["episodes"][0]["failure"]) == (0, None)


def test_an_episode_is_watched_and_verified_in_the_mode_that_is_asked_for(capsys):
    assert main(["play", "game.py:Game", "-p", "game.py:Counts", "--delay", "0", *SEQUENTIAL]) == 0
    shown = capsys.readouterr().out
    assert "step 2: b does 1" in shown
    assert "step 4: c does 1" in shown
    assert main(["verify", "game.py:Game", "-p", "game.py:Counts", "-e", "1", *SEQUENTIAL]) == 0
    assert "1 episodes, 4 steps, every bit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["eval", "-m", "gym:CartPole-v1", "-p", "random", *SEQUENTIAL],
            "got CartPoleEnv; play it in simultaneous ones",
        ),
        (["play", "gym:CartPole-v1", "-p", "random", *SEQUENTIAL], "only a TurnWorld has sequential turns"),
        (["verify", "gym:CartPole-v1", "-p", "random", *SEQUENTIAL], "only a TurnWorld has sequential turns"),
        (["eval", "-m", "foundry_1", "-p", "random", "--turns", "no"], "turns must be one of simultaneous, sequential"),
    ],
)
def test_it_is_refused_in_one_sentence(capsys, arguments, words):
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "Traceback" not in told
