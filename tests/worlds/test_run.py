"""What `make test-worlds` does with a program, before anything is installed."""

from __future__ import annotations

import sys

import pytest

from tests.worlds.run import digest, find_python, reason_to_skip


@pytest.fixture
def program(tmp_path):
    (tmp_path / "requirements.txt").write_text("a==1\n")
    return tmp_path


def test_a_program_that_names_no_python_has_the_one_that_runs_the_tests(program):
    assert find_python(program) == sys.executable


def test_a_program_whose_python_is_missing_is_skipped_with_a_sentence(program):
    (program / ".python-version").write_text("3.99\n")
    python = find_python(program)
    assert python is None
    assert reason_to_skip(program, python) == "it needs Python 3.99, and there is none on PATH"


def test_a_program_whose_folder_is_missing_is_skipped_with_a_sentence(program, tmp_path, monkeypatch):
    (program / "world-folder").write_text("sorrel\n")
    monkeypatch.delenv("STRETTO_WORLDS", raising=False)
    assert "set STRETTO_WORLDS" in reason_to_skip(program, sys.executable)
    monkeypatch.setenv("STRETTO_WORLDS", str(tmp_path))
    assert "has no folder sorrel" in reason_to_skip(program, sys.executable)
    (tmp_path / "sorrel").mkdir()
    assert reason_to_skip(program, sys.executable) is None


def test_an_environment_is_made_again_if_a_pinned_version_changes(program):
    before = digest(program, sys.executable)
    assert digest(program, sys.executable) == before
    (program / "requirements.txt").write_text("a==2\n")
    assert digest(program, sys.executable) != before
