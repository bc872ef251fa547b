"""A recurrent network that acts for many agents at once gives the same, however its agents are put together."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stretto.evaluation.evaluate import evaluate
from stretto.policies.spec import parse_policy
from tests.evaluation.players import Stateful

pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("workers_with_torch")


def results(report):
    return [json.dumps(replace(record, timing={}).as_json(), sort_keys=True) for record in report.records]


def run(**options):
    neural = parse_policy("neural")
    return results(evaluate(["gym:CartPole-v1", "foundry_1"], [neural, Stateful], episodes=5, steps=12, **options))


@pytest.fixture(scope="module")
def expected():
    return run(jobs=0, strategy="batched")


# Where a strategy needs no other process there is none: each takes a second to import torch.
@pytest.mark.parametrize(("strategy", "jobs"), [("sequential", 0), ("threads", 0), ("adaptive", 0), ("processes", 2)])
def test_the_strategy_changes_nothing(strategy, jobs, expected):
    assert run(jobs=jobs, parallel_policy=True, strategy=strategy) == expected


def test_the_number_of_jobs_changes_nothing(expected):
    assert run(jobs=2) == expected


def test_it_plays_beside_others(expected):
    policies = [parse_policy("class=neural,strategy=batched"), parse_policy("class=gatherer,strategy=processes")]
    mixed = [
        results(evaluate("foundry_1", policies, mix=True, cogs=4, episodes=3, steps=8, jobs=jobs)) for jobs in (0, 2)
    ]
    alone = [parse_policy("class=neural,strategy=sequential"), parse_policy("class=gatherer,strategy=threads")]
    other = results(evaluate("foundry_1", alone, mix=True, cogs=4, episodes=3, steps=8, jobs=0))
    assert mixed[0] == mixed[1]
    assert [json.loads(line)["rewards"] for line in mixed[0]] == [json.loads(line)["rewards"] for line in other]
