"""An evaluation gives the same results however it is computed, and says what failed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stretto.errors import UsageError
from stretto.evaluation.run import evaluate
from stretto.policies.spec import PolicySpec
from tests.evaluation.players import Drawing, Faulty, GlobalDrawing, Stateful

MISSIONS = ["gym:CartPole-v1", "pz:mpe2.simple_spread_v3", "foundry_1"]
POLICIES = [Stateful, Drawing, GlobalDrawing]


def results(report):
    """All that must not depend on how it was computed."""
    return [json.dumps(replace(record, timing={}).as_json(), sort_keys=True) for record in report.records]


@pytest.fixture(scope="module")
def expected():
    return results(evaluate(MISSIONS, POLICIES, episodes=3, steps=20, seed=5, jobs=0))


@pytest.mark.parametrize("jobs", [1, 2, 3, 5])
def test_the_number_of_jobs_changes_nothing(jobs, expected):
    assert results(evaluate(MISSIONS, POLICIES, episodes=3, steps=20, seed=5, jobs=jobs)) == expected


@pytest.mark.parametrize("strategy", ["sequential", "threads", "processes", "batched", "adaptive"])
def test_the_strategy_changes_nothing(strategy, expected):
    report = evaluate(
        MISSIONS, POLICIES, episodes=3, steps=20, seed=5, jobs=2, strategy=strategy, parallel_policy=True, cogs=None
    )
    assert results(report) == expected


def test_the_order_of_the_tasks_changes_nothing(expected):
    assert results(evaluate(MISSIONS, POLICIES, episodes=3, steps=20, seed=5, jobs=2, reverse=True)) == expected


def test_episodes_do_not_depend_on_how_many_there_are(expected):
    more = evaluate(MISSIONS, POLICIES, episodes=4, steps=20, seed=5, jobs=0)
    assert [line for line in results(more) if json.loads(line)["episode"] < 3] == expected


def test_one_episode_can_be_played_alone(expected):
    one = evaluate(MISSIONS, POLICIES, episodes=3, steps=20, seed=5, jobs=0, only=[1])
    assert results(one) == [line for line in expected if json.loads(line)["episode"] == 1]


def test_all_policies_play_the_same_episodes(expected):
    seeds = {(r["mission"], r["episode"], r["label"]): r["seed"] for r in map(json.loads, expected)}
    assert all(seeds[m, e, "Stateful"] == seed for (m, e, _), seed in seeds.items())
    assert len(set(seeds.values())) == len(MISSIONS) * 3


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_policy_that_raises_fails_its_episodes_and_no_others(jobs):
    bad = PolicySpec("bad", Faulty, {"how": "raise"})
    report = evaluate("gym:CartPole-v1", [bad, Stateful], episodes=8, steps=10, jobs=jobs)
    failed = [record for record in report.records if record.failure is not None]
    assert {record.label for record in failed} == {"bad"}
    assert 0 < len(failed) < 8
    failure = failed[0].failure
    assert (failure.kind, failure.policy, failure.agent, failure.step) == ("ValueError", "bad", "agent_0", 2)
    assert "had enough" in failure.traceback
    assert "act_up" in failure.traceback
    assert f"--only {failed[0].episode}" in failure.reproduce
    # What failed is left out for all.
    for summary in report.summary.by_mission:
        assert summary.episodes == 8 - len(failed)


@pytest.mark.parametrize("strategy", ["sequential", "processes"])
def test_a_policy_that_dies_is_tried_again_and_nothing_differs(strategy, tmp_path):
    calm = PolicySpec("p", Faulty, {"how": "die", "share": 0.0})
    wild = PolicySpec("p", Faulty, {"how": "die", "share": 0.5, "folder": str(tmp_path)})
    for number in range(2):
        (tmp_path / str(number)).touch()
    expected = evaluate("gym:CartPole-v1", calm, episodes=8, steps=10, jobs=0)
    report = evaluate("gym:CartPole-v1", wild, episodes=8, steps=10, jobs=2, strategy=strategy)
    assert not list(tmp_path.iterdir())
    assert results(report) == results(expected)
    assert sum(record.timing["attempts"] for record in report.records) > 8


def test_one_that_dies_every_time_fails_after_three_attempts_and_others_go_on():
    bad = PolicySpec("bad", Faulty, {"how": "die", "share": 0.3})
    report = evaluate("gym:CartPole-v1", [bad, Stateful], episodes=6, steps=10, jobs=2)
    failed = [record for record in report.records if record.failure is not None]
    assert failed
    assert {record.label for record in failed} == {"bad"}
    assert all("3 times" in record.failure.message for record in failed)


def test_policies_can_play_together_in_proportion():
    few = PolicySpec("few", Drawing, {}, proportion=1)
    many = PolicySpec("many", Stateful, {}, proportion=3)
    runs = [evaluate("foundry_1", [few, many], mix=True, cogs=8, episodes=3, steps=5, jobs=jobs) for jobs in (0, 2)]
    assert results(runs[0]) == results(runs[1])
    casts = [tuple(record.policies.values()) for record in runs[0].records]
    assert all(cast.count("few") == 2 and cast.count("many") == 6 for cast in casts)
    assert len(set(casts)) > 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"missions": "foundry_9"}, "did you mean foundry_"),
        ({"policies": "randon"}, "random"),
        ({"episodes": 0}, "at least 1"),
        ({"jobs": -1}, "at least 0"),
        ({"strategy": "magic"}, "sequential"),
        ({"policies": ["random", "random"]}, "different names"),
        ({"missions": "gym:Nothing-v0"}, "Nothing"),
        ({"missions": "gym:CartPole-v1", "cogs": 3}, "--cogs"),
    ],
)
def test_bad_input_gets_one_sentence(options, told):
    with pytest.raises(UsageError, match=told):
        evaluate(**{"missions": "gym:CartPole-v1", "policies": "random", **options})
