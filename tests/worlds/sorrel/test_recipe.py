"""The recipe's Python runs where Sorrel is."""

from __future__ import annotations

import os
import sys

import pytest

pytest.importorskip("sorrel", reason="Sorrel is not on the path; make test-worlds has it if STRETTO_WORLDS is set")

from tests.docs.pages import ROOT
from tests.docs.test_code import test_the_python_of_a_page_runs_from_top_to_bottom as run_page


def test_the_recipe_runs(tmp_path, monkeypatch):
    found = [folder for folder in sys.path if folder.endswith("sorrel")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*found, os.environ.get("PYTHONPATH", "")]))
    run_page(ROOT / "docs" / "guide" / "recipes" / "sorrel.md", tmp_path)
