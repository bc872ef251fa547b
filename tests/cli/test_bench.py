"""`stretto bench`: its two streams and its exit code; in another process where that may matter."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stretto
from stretto.bench import RaceResult, RaceRow
from stretto.cli.app import main

STRETTO = [sys.executable, "-m", "stretto"]
ROWS = ["plain loop", "serial", "thread", "process", "auto"]


def run(*arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run(
        [*STRETTO, *arguments], capture_output=True, text=True, timeout=100, env=environment, check=False
    )


def test_the_table_fits_and_says_what_auto_chose_and_progress_is_one_line_on_stderr():
    done = run("bench", "CartPole-v1", "-n", "4", "--seconds", "0.1", columns=60)
    assert (done.returncode, done.stderr) == (0, "measuring 4 x gym:CartPole-v1\n")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert all(any(name in line for line in lines) for name in ROWS)
    assert "auto chose" in done.stdout
    assert "because" in done.stdout


def test_json_is_all_that_stdout_has_and_in_a_terminal_a_bar_shows_the_progress(monkeypatch, capsys):
    ours, theirs = pty.openpty()
    command = [*STRETTO, "bench", "CartPole-v1", "-n", "2", "--seconds", "0.1", "--format", "json"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = _read_all(ours)
        assert process.stdout is not None
        (world,) = json.loads(process.stdout.read())["worlds"]
    os.close(ours)
    assert process.returncode == 0
    assert b"measuring 2 x gym:CartPole-v1" in shown
    assert b"\x1b[" in shown
    assert (world["world"], world["num_envs"]) == ("gym:CartPole-v1", 2)
    assert [row["name"] for row in world["rows"]] == ROWS
    assert world["rows"][0]["ratio"] == 1.0
    assert all(row["steps_per_second"] > 0 and row["choice"] for row in world["rows"])

    # What was measured, on a wide screen.
    measured = RaceResult(**{**world, "rows": [RaceRow(**row) for row in world["rows"]]})
    monkeypatch.setattr("stretto.cli.bench.race", lambda *_, **__: measured)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["bench", "CartPole-v1"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def _read_all(fd: int) -> bytes:
    data = b""
    try:
        while chunk := os.read(fd, 4096):
            data += chunk
    except OSError:  # what a terminal answers when its other end is gone
        pass
    return data


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bench", "Nope-v0"], ["'Nope-v0'", "no registered environment"]),
        (["bench", "nope:Nope-v0"], ["'nope:Nope-v0'", "nope"]),
        (["bench", "-n", "0"], ["num_envs", "at least 1", "got 0"]),
        (["bench", "-n", "many"], ["'many'", "stretto bench --help"]),
        (["bench", "--seconds", "long"], ["'long'", "stretto bench --help"]),
        (["bench", "--seconds", "0"], ["seconds", "more than 0", "got 0"]),
        (["bench", "--format", "xml"], ["'xml'", "table", "json", "stretto bench --help"]),
        (["bench", "--format", "yaml"], ["'yaml'", "table", "json", "stretto bench --help"]),
        (["bench", "--fast"], ["--fast", "stretto bench --help"]),
        (["banch"], ["banch", "stretto --help"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, told, capsys):
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("stretto: ")
    assert errors.count("\n") == 1
    assert all(part in errors for part in told)


def test_the_exit_code_of_bad_input_is_that_of_the_process():
    done = run("banch")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_world_that_fails_is_exit_code_1(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "falls_over.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class FallsOver(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        raise ArithmeticError('it fell over')\n"
        "gymnasium.register('FallsOver-v0', FallsOver)\n"
    )
    done = run("bench", "falls_over:FallsOver-v0", "-n", "2", "--seconds", "0.1")
    assert done.returncode == 1
    assert "it fell over" in done.stderr
    assert done.stdout == ""


def test_a_world_that_crashes_the_interpreter_is_one_sentence_and_exit_code_1(tmp_path: Path):
    file = tmp_path / "crashes.py"
    file.write_text(
        "import os\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Crashes(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        os.abort()\n"
    )
    done = run("bench", f"{file}:Crashes", "-n", "2", "--seconds", "0.1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "stretto: crashes:Crashes would end this process, in which a plain loop steps it: its process died while being "
        "tried: it was killed by signal 6 (SIGABRT)\n"
    )


def test_ctrl_c_ends_it_within_2_seconds_with_3_lines_at_most_and_exit_code_130():
    command = [*STRETTO, "bench", "CartPole-v1", "-n", "8", "--seconds", "60"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert select.select([process.stderr], [], [], 60)[0]
        first = process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to everybody in the group
        began = time.monotonic()
        out, rest = process.communicate(timeout=30)
        assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert out == ""
    assert (first + rest).count("\n") <= 3
    assert "Traceback" not in rest


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stretto {stretto.__version__}\n"


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 0
    assert "bench" in capsys.readouterr().out


def test_importing_stretto_imports_nothing_that_only_the_command_line_needs():
    code = "import sys, stretto; print([n for n in ('typer', 'rich', 'stretto.cli') if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_files_and_missions_are_measured_as_ids_are(tmp_path, monkeypatch, capsys):
    (tmp_path / "poles.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv as Pole\n")
    monkeypatch.chdir(tmp_path)
    words = ["bench", "poles.py:Pole", "-m", "pointgoal", "-n", "1", "--seconds", "0.02", "--format", "json"]
    assert main(words) == 0
    assert [world["world"] for world in json.loads(capsys.readouterr().out)["worlds"]] == ["poles:Pole", "pointgoal"]
