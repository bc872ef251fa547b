"""Whose code a file is, and what tracebacks tell of it."""

from __future__ import annotations

import json
import traceback

import numpy as np
import pytest

import stretto
from stretto.cli.text import users_frames
from stretto.evaluation.playing.tracebacks import last_place
from stretto.identity.owners import Owner, is_users, owner_of

FILES = {
    __file__: Owner.USER,
    "/home/somebody/elsewhere/policy.py": Owner.USER,
    stretto.__file__: Owner.STRETTO,
    json.__file__: Owner.PYTHON,
    np.__file__: Owner.PACKAGE,
}


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_of_the_user_of_stretto_of_python_or_of_a_package(file):
    assert owner_of(file) is FILES[file]
    assert is_users(file) == (FILES[file] is Owner.USER)


def test_code_without_a_file_is_nobodys_to_edit():
    assert not is_users(None)


def raised() -> Exception:
    """Return an error that the user's code has raised by calling Stretto, which has called Python."""
    try:
        stretto.load_rollouts(b"\0")
    except Exception as error:
        return error
    raise AssertionError("no folder has such a name")


def test_the_place_of_an_error_is_the_last_one_of_the_users_code_wherever_in_stretto_it_was_raised():
    text = "".join(traceback.format_exception(raised()))
    assert "collection" in text
    assert last_place(text).rpartition(":")[0] == __file__


def test_the_users_frames_are_those_after_all_of_stretto():
    def policy() -> None:
        raise KeyError("ore")

    try:
        policy()
    except KeyError as error:
        shown = users_frames(error)
    assert __file__ in shown
    assert str(stretto.__file__) not in shown
