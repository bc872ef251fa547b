"""The page of a run, and curves over several seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from stretto.evaluation.report.curves import Curve, curves
from stretto.training.adaptation import adaptation, adaptation_text
from stretto.training.curves import SeedHistory
from stretto.training.page import render_page


def history(seed: int, values: list[float]) -> SeedHistory:
    agents = [{"a": {"return": value, "loss": -value, "updates": 1.0}} for value in values]
    rows: list[dict[str, Any]] = [
        {"steps": 100 * (k + 1) + seed, "agents": one, "timing": {}} for k, one in enumerate(agents)
    ]
    summary = {"steps": 300, "agents": {"a": {"return": values[-1], "updates": 3, "weights": "ab" * 32}}, "timing": {}}
    return SeedHistory(seed, rows, summary)


PLAN = {"world": "<world>", "config": {"learner": "ppo", "ppo": {"rows": 3}}}


def test_one_run_has_curves_without_bands_and_users_names_are_escaped() -> None:
    page = render_page(PLAN, [history(0, [1.0, 2.0, 3.0])])
    assert page.count('<polyline class="curve"') == 2
    assert '<polygon class="band"' not in page
    assert "&lt;world&gt;, ppo: mean return 3.00 in the last episodes of training" in page
    assert "<dt>ppo.rows</dt><dd>3</dd>" in page


def test_several_seeds_have_the_interval_of_their_mean() -> None:
    page = render_page(PLAN, [history(seed, [1.0, 2.0, float(seed)]) for seed in range(4)])
    assert page.count('<polygon class="band"') == 2
    assert "mean return 1.50" in page
    assert "over 4 seeds" in page


def test_a_run_without_a_whole_episode_has_a_page() -> None:
    rows: list[dict[str, Any]] = [{"steps": 5, "agents": {"a": {"return": None, "updates": 1.0}}, "timing": {}}]
    summary = {"steps": 5, "agents": {"a": {"return": None, "updates": 1, "weights": "ab" * 32}}, "timing": {}}
    assert "no episode has ended" in render_page(PLAN, [SeedHistory(0, rows, summary)])


def test_the_nodes_of_a_cluster_are_named_with_what_they_had() -> None:
    one = history(0, [1.0, 2.0, 3.0])
    nodes = {"10.0.0.2": {"environments": 3, "agents": 1}}
    timing = {"seconds": 1.0, "steps_per_second": 5.0, "shares": {}, "nodes": nodes}
    page = render_page(PLAN, [replace(one, summary={**one.summary, "timing": timing})])
    assert "10.0.0.2" in page
    assert "10.0.0.2" not in render_page(PLAN, [one])


def test_a_curve_lies_within_its_plot() -> None:
    drawn = curves("c", "c", "steps", [Curve("one", 0, [0.0, 50.0, 100.0], [-1.0, 5.0, 2.0])])
    points = drawn.partition('points="')[2].partition('"')[0].split()
    across, up = np.array([[float(part) for part in point.split(",")] for point in points]).T
    assert across.tolist() == [0.0, 500.0, 1000.0]
    assert np.argsort(up).tolist() == [1, 2, 0]  # heights are counted from the top
    assert curves("c", "c", "steps", [Curve("one", 0, [1.0], [1.0])]) == ""


def test_evaluations_of_one_run_have_a_band_over_their_episodes() -> None:
    run = history(0, [1.0, 2.0, 3.0])
    evaluations = [{"steps": row["steps"], "return": 5.0, "deviation": 2.0, "episodes": 16} for row in run.rows]
    page = render_page(PLAN, [replace(run, evaluations=evaluations)])
    assert "interval of the mean over episodes" in page
    assert page.count('<polygon class="band"') == 1


def test_trials_have_a_section_with_the_return_of_each_episode() -> None:
    run = history(0, [1.0, 2.0, 3.0])
    both = [{"return": 1.5, "low": 1.25, "high": 1.75}, {"return": 4.5, "low": 4.0, "high": 5.0}]
    one = {"steps": 300, "return": 3.0, "deviation": 2.0, "episodes": 16, "by_episode": both}
    page = render_page(PLAN, [replace(run, evaluations=[one])])
    assert ">Adaptation<" in page
    assert "4.50" in page
    assert "[4.00, 5.00]" in page
    assert adaptation_text(one) == "by episode of a trial: 1.50 [1.25, 1.75], 4.50 [4.00, 5.00]"
    assert "Adaptation" not in render_page(PLAN, [run])


def test_means_by_episode_lie_within_their_intervals_and_one_trial_has_none() -> None:
    found = adaptation(np.array([[1.0, 5.0], [3.0, 5.0], [2.0, 5.0]]))
    assert [one["return"] for one in found] == [2.0, 5.0]
    assert 1.0 <= found[0]["low"] < 2.0 < found[0]["high"] <= 3.0
    assert adaptation(np.array([[1.0, 5.0]])) == [{"return": 1.0}, {"return": 5.0}]
