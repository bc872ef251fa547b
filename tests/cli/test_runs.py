"""`stretto report`, `stretto compare` and what goes on with a run: what is printed where, and the exit code."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.cli.app import main

PLAY = ["eval", "-m", "gym:CartPole-v1", "-s", "9", "--jobs", "0", "--quiet"]


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Run a command in a folder of its own; return its exit code, and what it printed."""
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text("def act(observation):\n    return 1\n")

    def run(*words):
        return main(list(words)), *capsys.readouterr()

    return run


def test_a_run_is_extended_and_goes_on_with_changes_that_are_told(call):
    assert call(*PLAY, "-p", "agent.py:act", "-e", "2", "--out", "run")[0] == 0
    assert json.loads(call("eval", "--resume", "run", "-e", "4", "--format", "json")[1])["plan"]["episodes"] == 4
    # From now on that is how many there are.
    assert len(json.loads(call("eval", "--resume", "run", "--format", "json")[1])["episodes"]) == 4
    Path("agent.py").write_text("def act(observation):\n    return 0\n")
    code, out, told = call("eval", "--resume", "run", "-e", "6")
    assert (code, out) == (2, "")
    assert "of the policy agent.py:act, the file agent.py was" in told
    code, _, told = call("eval", "--resume", "run", "-e", "6", "--accept-changes")
    assert code == 0
    assert "not all episodes were played by the same code: after 4 episodes it went on with changes" in told
    assert "not all episodes were played by the same code" in call("report", "run")[2]


def test_a_report_shows_the_time_and_the_command_of_the_first_run_and_of_each_that_resumed_it(call):
    begun = [*PLAY, "-p", "noop", "-e", "1", "--out", "run"]
    assert call(*begun)[0] == 0
    assert commands_in("run") == [shlex.join(["stretto", *begun])]
    for episodes in ("2", "3"):
        assert call("eval", "--resume", "run", "-e", episodes)[0] == 0
    told = [shlex.join(["stretto", *begun]), "stretto eval --resume run -e 2", "stretto eval --resume run -e 3"]
    assert commands_in("run") == told
    assert call("report", "run")[0] == 0
    assert commands_in("run") == told


def test_a_comparison_shows_its_time_and_its_command(call):
    for name in ("one", "two"):
        assert call(*PLAY, "-p", "noop", "-e", "1", "--out", name)[0] == 0
    assert call("compare", "one", "two", "--out", "both")[0] == 0
    assert commands_in("both") == ["stretto compare one two --out both"]


def commands_in(folder):
    """Return the commands at the top of a report, each of which stands after a time."""
    (told,) = re.findall('<p id="run".*?</p>', Path(folder, "report.html").read_text(), re.DOTALL)
    return [html.unescape(one) for one in re.findall("<time>[-0-9: ]+ UTC</time> · <code>(.*?)</code>", told)]


def test_runs_are_compared_on_stdout_and_notes_go_to_stderr(call):
    for name, seed in (("one", "0"), ("two", "0"), ("three", "5")):
        assert call(*PLAY, "-p", "agent.py:act", "-e", "3", "--seed", seed, "--out", name)[0] == 0
    code, out, _ = call("compare", "one", "two", "--format", "json", "--out", "both")
    assert code == 0
    assert json.loads(out)["summary"]["labels"] == ["agent.py:act (one)", "agent.py:act (two)"]
    assert Path("both/report.html").exists()
    assert "holds an evaluation, which would be overwritten" in call("compare", "one", "two", "--out", "both")[2]
    code, out, told = call("compare", "one", "three")
    assert (code, out) == (2, "")
    assert "seed is 0 in one and 5 in three; play one of them again" in told


@pytest.mark.parametrize("named", [[], [*PLAY[1:], "-p", "noop"]], ids=["alone", "with missions and policies"])
def test_a_folder_that_does_not_exist_cannot_be_resumed_and_is_not_made(call, named):
    code, _, told = call("eval", *named, "--resume", "missing")
    assert code == 2
    assert "missing does not exist; name the folder of --out" in told
    assert not Path("missing").exists()


def test_a_folder_with_a_broken_plan_is_told_with_a_remedy_by_all_commands_that_read_it(call):
    for name in ("one", "two"):
        call(*PLAY, "-p", "noop", "-e", "1", "--out", name)
    for file in ("plan.json", "summary.json"):
        Path("two", file).write_text("{")
    for words in (["compare", "one", "two"], ["report", "two"], ["eval", "--resume", "two", "-e", "2"]):
        code, _, told = call(*words)
        assert code == 2
        assert "two has none; put it back from a copy, or begin again in another folder" in " ".join(told.split())
        assert "to go on with" not in told


def test_a_report_on_two_records_of_one_episode_names_the_file_and_the_line(call):
    call(*PLAY, "-p", "noop", "-e", "2", "--out", "run")
    file = Path("run/episodes.jsonl")
    file.write_text(file.read_text() + file.read_text().splitlines()[1] + "\n")
    code, _, told = call("report", "run")
    assert code == 2
    told = " ".join(told.split())
    assert "one line in run/episodes.jsonl, and line 3 is another one of episode 1 of noop" in told


@pytest.mark.parametrize(
    "content", ['{"episodes": "ten"}', '{"mission": 5}', "[1]", "{", '{"only": 7}', '{"later": 1}']
)
def test_arguments_that_are_damaged_are_told_and_can_be_given_again(call, content):
    call(*PLAY, "-p", "agent.py:act", "-e", "2", "--out", "run")
    Path("run/arguments.json").write_text(content)
    code, _, told = call("eval", "--resume", "run")
    assert code == 2
    assert "a readable arguments.json, and run has none; name the missions and policies of the evaluation again" in told
    assert call(*PLAY, "-p", "agent.py:act", "-e", "3", "--resume", "run")[0] == 0
    assert call("eval", "--resume", "run", "-e", "4")[0] == 0


def test_a_full_disk_behind_what_is_printed_is_told_without_a_traceback(call):
    words = [sys.executable, "-m", "stretto", *PLAY, "-p", "random", "-e", "1"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("stretto: a file, or what this command prints could not be written: No space left")
    assert "Traceback" not in done.stderr
