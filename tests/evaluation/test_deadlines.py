"""How long an agent may compute: counted for each agent by itself, with a bank, and enforced wherever it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.evaluation.evaluate import evaluate
from stretto.missions.resolve import find_missions
from stretto.policies.spec import PolicySpec
from tests.evaluation.players import Fixed, Sleeping, Stateful

STEPS = 2
LATE = {"seconds": 0.25}
LIMIT = {"action_timeout_ms": 150, "cogs": 2, "steps": STEPS}

everywhere = pytest.mark.parametrize(("jobs", "strategy"), [(0, "sequential"), (1, "processes")])


def slow(**kwargs):
    return PolicySpec("slow", Sleeping, {**LATE, **kwargs})


@everywhere
def test_one_that_is_late_forfeits_its_episodes_and_is_not_tried_again(jobs, strategy):
    report = evaluate(
        "foundry_1", [slow(who="cog_1", at=1), Stateful], episodes=2, jobs=jobs, strategy=strategy, **LIMIT
    )
    late, others = report.records[:2], report.records[2:]
    for record in late:
        failure = record.failure
        assert (failure.kind, failure.policy, failure.agent, failure.step) == ("PolicyOverdue", "slow", "cog_1", 2)
        assert "0.15 s" in failure.message
        assert record.overdue == {"cog_1": 1}
        assert record.timing["attempts"] == 1
    assert all(record.failure is None and not record.overdue for record in others)
    assert [row.overdue for row in report.summary.by_mission] == [2, 0]


def test_the_bank_pays_for_being_late_now_and_then():
    report = evaluate("foundry_1", slow(who="cog_0", at=1), episodes=1, jobs=1, overage_ms=2000, **LIMIT)
    assert [(record.failure, record.overdue) for record in report.records] == [(None, {})]


@everywhere
def test_a_mission_with_a_default_action_goes_on_with_it_and_counts(jobs, strategy):
    (mission,) = find_missions(["foundry_1"], cogs=2)
    mission = replace(mission, has_default_action=True, default_action=1)
    options = {**LIMIT, "cogs": None, "episodes": 1}
    (record,) = evaluate(mission, slow(who="cog_0"), jobs=jobs, strategy=strategy, **options).records
    assert record.overdue == {"cog_0": STEPS}
    assert record.failure is None
    # It is as if that agent had chosen the default action each time.
    (expected,) = evaluate(mission, PolicySpec("p", Fixed, {"who": "cog_0", "action": 1}), jobs=0, **options).records
    assert (record.rewards, record.statistics) == (expected.rewards, expected.statistics)
