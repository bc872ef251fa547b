"""The Python of the recipes runs where the learners are installed."""

from __future__ import annotations

import pytest

pytest.importorskip("torchrl", reason="TorchRL is not installed; make test-worlds has it")
pytest.importorskip("envpool", reason="EnvPool is not installed; make test-worlds has it")

from tests.docs.pages import ROOT
from tests.docs.test_code import test_the_python_of_a_page_runs_from_top_to_bottom as run_page


@pytest.mark.parametrize("page", ["torchrl.md", "envpool.md"])
def test_the_recipe_runs(page, tmp_path):
    run_page(ROOT / "docs" / "guide" / "recipes" / page, tmp_path)
