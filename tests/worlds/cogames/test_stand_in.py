"""Beside the stand-in for torch that these tests have, everything that needs no torch works as where there is none."""

from __future__ import annotations

import importlib

import pytest

from stretto.errors import UsageError
from stretto.evaluation.evaluate import evaluate
from stretto.policies.torch_settings import torch_installed
from stretto.seeding.generators import PrivateGenerators
from stretto.seeding.streams import SeedTree

torch = pytest.importorskip("torch", reason="neither torch nor its stand-in is installed")
pytestmark = pytest.mark.skipif(hasattr(torch, "Tensor"), reason="torch itself is installed, not its stand-in")


def test_an_evaluation_runs_although_torch_is_imported_and_has_no_settings():
    report = evaluate("foundry_1", "gatherer", episodes=2, steps=20, jobs=0)
    assert [record.failure for record in report.records] == [None, None]


def test_what_is_no_torch_does_not_count_as_installed():
    assert not torch_installed()
    with pytest.raises(UsageError, match="needs torch"):
        evaluate("foundry_1", "gatherer", episodes=1, device="cuda")


def test_a_guarded_call_may_import_what_has_no_generators():
    guard = PrivateGenerators(SeedTree(0))
    assert guard.run(lambda: importlib.import_module("torch").no_grad() is not None)
    assert not guard.drawn
