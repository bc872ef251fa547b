"""An evaluation gives the same results however it is computed, and says what failed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import gymnasium
import pytest

from stretto.errors import UsageError
from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.plan import Entry, Plan
from stretto.missions.mission import Mission
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
    assert (failure.kind, failure.policy, failure.agent, failure.step) == ("ValueError", "bad", "agent_0", 3)
    assert "had enough" in failure.traceback
    assert "act_up" in failure.traceback
    assert f"only=[{failed[0].episode}]" in failure.reproduce
    # What failed is left out for all.
    for summary in report.summary.by_mission:
        assert summary.episodes == 8 - len(failed)


@pytest.mark.parametrize(("jobs", "strategy"), [(1, "sequential"), (2, "threads"), (0, "processes")])
def test_what_a_policy_raised_is_told_the_same_wherever_it_ran(jobs, strategy):
    bad = PolicySpec("bad", Faulty, {"how": "raise", "share": 0.3})
    options = {"cogs": 3, "episodes": 4, "steps": 6}

    def told(report):
        # How to play it again names the strategy; all else must be the same.
        return [record.failure for record in report.records]

    expected = evaluate("foundry_1", [bad, Stateful], jobs=0, strategy="sequential", **options)
    report = evaluate("foundry_1", [bad, Stateful], jobs=jobs, strategy=strategy, **options)
    assert any(told(expected))
    assert told(report) == told(expected)


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
        ({"missions": "gym:CartPole-v1", "cogs": 3}, "got cogs for gym:CartPole-v1"),
        ({"action_timeout_ms": 0}, "more than 0, got 0"),
        ({"overage_ms": -1}, "at least 0, got -1"),
        ({"hang_seconds": float("nan")}, "more than 0, got nan"),
    ],
)
def test_bad_input_gets_one_sentence(options, told):
    with pytest.raises(UsageError, match=told):
        evaluate(**{"missions": "gym:CartPole-v1", "policies": "random", **options})


class Leaving(gymnasium.Env):
    """Calls sys.exit() in its third step."""

    observation_space = action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return 0, {}

    def step(self, action):
        self.count += 1
        if self.count == 3:
            sys.exit(4)
        return self.count, 1.0, False, False, {}


def leaves(observation):
    return sys.exit(4)


@pytest.mark.parametrize("jobs", [0, 1])
def test_sys_exit_ends_an_episode_and_not_the_evaluation(jobs):
    by_world = evaluate(Leaving, "random", episodes=2, steps=5, jobs=jobs)
    by_policy = evaluate("gym:CartPole-v1", ["random", leaves], episodes=2, steps=5, jobs=jobs)
    assert [record.failure.kind for record in by_world.records] == ["SystemExit"] * 2
    assert [record.failure.step for record in by_world.records] == [3, 3]
    assert [record.failure and record.failure.kind for record in by_policy.records] == [None] * 2 + ["SystemExit"] * 2


@pytest.mark.parametrize("jobs", ["2", 1.5, True, -1])
def test_the_number_of_jobs_must_be_one(jobs):
    with pytest.raises(UsageError, match="jobs must be"):
        evaluate("gym:CartPole-v1", "random", jobs=jobs)


def answer_with_an_object(observation):
    return object()


def raise_with_an_object(observation):
    raise ValueError(object())


@pytest.mark.parametrize("policy", [answer_with_an_object, raise_with_an_object])
def test_what_is_told_of_a_failure_has_no_address_in_it_which_differs_from_process_to_process(policy):
    (record,) = evaluate("gym:CartPole-v1", policy, episodes=1, jobs=0).records
    assert "<object object>" in record.failure.message
    assert "0x" not in json.dumps(record.as_json())


def test_of_more_policies_than_agents_some_play_in_each_episode_in_proportion():
    even = tuple(PolicySpec(name, Drawing) for name in "abcd")
    plan = Plan((Mission("game", dict),), (Entry("mix", even),), 99, 0)
    groups = [frozenset(plan.episode(0, 0, e, "xy").policies.values()) for e in range(60)]
    assert {groups.count(group) for group in groups} == {10}  # six pairs, each as often
    assert plan.episode(0, 0, 7, "xy") == replace(plan, episodes=8).episode(0, 0, 7, "xy")
    sides = [plan.episode(0, 0, e, "xy").policies["x"] for e in range(240)]
    assert min(sides.count(one) for one in range(4)) > 35
    uneven = tuple(PolicySpec(name, Drawing, proportion=10.0 if name == "a" else 1.0) for name in "abcd")
    plan = replace(plan, entries=(Entry("mix", uneven),))
    met = [[*plan.episode(0, 0, e, "xy").policies.values()] for e in range(60)]
    assert all(len(set(pair)) == 2 for pair in met)
    assert sum(0 in pair for pair in met) > 50
