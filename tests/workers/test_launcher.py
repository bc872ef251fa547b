"""The launcher imports what workers need before it forks them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stretto
from stretto.workers.launcher import launcher
from tests.worlds import CountTo, Drift


def modules_of_a_worker() -> set[str]:
    with stretto.make_vec(CountTo, 1, backend="process", workers=1, isolate=True) as envs:
        return set(envs.map(lambda _: list(sys.modules))[0])


def test_a_launcher_that_runs_imports_a_module_for_the_workers_that_follow():
    assert "zipapp" not in modules_of_a_worker()
    pid = launcher().pid
    launcher().preload("zipapp")
    launcher().preload("a_module_that_nobody_has")
    assert "zipapp" in modules_of_a_worker()
    assert launcher().pid == pid


def test_workers_that_play_whole_rollouts_and_episodes_import_nothing_of_ours():
    assert len(stretto.collect(Drift, "noop", 2, max_steps=2, backend="process", workers=1, isolate=True)) == 2
    assert stretto.evaluate(Drift, "noop", episodes=1, steps=2, jobs=1).records
    assert {"stretto.collection.worker_stage", "stretto.evaluation.playing.episode_worker"} <= modules_of_a_worker()


def test_workers_that_learn_find_torch_imported_and_the_launcher_still_has_no_threads():
    pytest.importorskip("torch")
    ppo = {"rows": 8, "batch": 8, "epochs": 1}
    config = {"preset": None, "ppo": ppo, "learner_set": "processes", "block": 1}
    stretto.train("foundry_1", steps=40, num_envs=2, backend="serial", config=config, budget=stretto.CpuBudget(2))
    needed = {"torch", "torch.fx.experimental.symbolic_shapes", "stretto.training.learner_service"}
    assert needed | {"stretto.training.learners.ppo"} <= modules_of_a_worker()
    assert len(list(Path(f"/proc/{launcher().pid}/task").iterdir())) == 1
