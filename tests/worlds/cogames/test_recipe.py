"""The recipe's Python runs where cogames is installed."""

from __future__ import annotations

import pytest

pytest.importorskip("cogames", reason="cogames is not installed; make test-worlds has it")

from tests.docs.pages import ROOT
from tests.docs.test_code import test_the_python_of_a_page_runs_from_top_to_bottom as run_page


def test_the_recipe_runs(tmp_path):
    run_page(ROOT / "docs" / "guide" / "recipes" / "cogames.md", tmp_path)
