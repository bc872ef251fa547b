"""The launcher imports what workers need before it forks them."""

from __future__ import annotations

import sys

import stretto
from stretto.workers.launcher import launcher
from tests.worlds import CountTo, Drift


def modules_of_a_worker() -> set[str]:
    with stretto.make_vec(CountTo, 1, backend="process", workers=1, isolate=True) as envs:
        return set(envs.map(lambda _: list(sys.modules))[0])


def test_a_launcher_that_runs_imports_a_module_for_the_workers_that_follow():
    assert "colorsys" not in modules_of_a_worker()
    pid = launcher().pid
    launcher().preload("colorsys")
    launcher().preload("a_module_that_nobody_has")
    assert "colorsys" in modules_of_a_worker()
    assert launcher().pid == pid


def test_workers_that_play_whole_rollouts_and_episodes_import_nothing_of_ours():
    assert len(stretto.collect(Drift, "noop", 2, max_steps=2, backend="process", workers=1, isolate=True)) == 2
    assert stretto.evaluate(Drift, "noop", episodes=1, steps=2, jobs=1).records
    assert {"stretto.collection.worker_stage", "stretto.evaluation.playing.episode_worker"} <= modules_of_a_worker()
