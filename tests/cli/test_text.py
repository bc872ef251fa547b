"""What is printed fits on a screen of 80 columns, whoever wrote it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from stretto.cli.app import main
from stretto.cli.text import documentation


@pytest.mark.parametrize(
    "command", ["", "eval", "missions", "policies", "describe", "play", "verify", "bench", "report", "compare"]
)
def test_help_fits_and_cuts_no_sentence_short(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"] if command else []) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Usage: stretto {command}".rstrip())
    assert all(len(line) <= 80 for line in lines)
    assert not any(line.endswith("...") for line in lines[1:])


@pytest.mark.parametrize(
    "mission", ["foundry_4", "netdefense_b_line", "pointgoal", "gym:CartPole-v1", "pz:mpe2.simple_spread_v3"]
)
def test_the_description_of_any_mission_fits(mission, capsys):
    assert main(["describe", mission]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{mission}: ")
    assert all(len(line) <= 80 for line in lines)
    assert any(" sees " in line for line in lines)


def test_paragraphs_are_filled_and_lists_code_and_tables_keep_their_lines():
    text = """
A sentence that is written over
two lines, and goes on until it is too long for one line of a terminal's eighty columns.

# A heading
- an item that is so long that it has to be broken, in a place that is behind its eightieth column
- another
1. a first
2. a second

Args:
    size: how large it is, in words that do not end before the line does, and so go on in the next
        one.
    seed: which.

```
>>> play()
[1, 2]
```

| name          | what it is                                                               | more |
|---------------|--------------------------------------------------------------------------|------|
"""
    assert documentation(text.strip()).splitlines() == [
        "A sentence that is written over two lines, and goes on until it is too long for",
        "one line of a terminal's eighty columns.",
        "",
        "# A heading",
        "- an item that is so long that it has to be broken, in a place that is behind",
        "  its eightieth column",
        "- another",
        "1. a first",
        "2. a second",
        "",
        "Args:",
        "    size: how large it is, in words that do not end before the line does, and so",
        "      go on in the next one.",
        "    seed: which.",
        "",
        "```",
        ">>> play()",
        "[1, 2]",
        "```",
        "",
        "| name | what it is | more |",
        "|---|---|---|",
    ]


def test_in_a_terminal_errors_are_broken_between_words():
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "stretto", "eval", "-m", "foundry_1", "-p", "gathrer"]
        code = subprocess.run(command, stderr=theirs, timeout=60, check=False).returncode
        told = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    lines = told.splitlines()
    assert code == 2
    assert len(lines) > 1
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(told.split()).endswith("got 'gathrer'; did you mean gatherer?")
