"""Agents that choose before it is their turn: the result of sequential turns, however it is computed."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import stretto
from stretto.core import AgentPolicy
from stretto.errors import TurnsInOrder, UsageError
from stretto.evaluation.plan import Plan, PlaySettings, entries_of
from stretto.evaluation.playing.scheduler import Scheduler
from stretto.missions.resolve import find_missions
from stretto.workers.backends import PROCESS, SERIAL
from tests.evaluation.test_lost_processes import killing
from tests.policies.recurrent import Forgotten, Recurrent, RecurrentBlock, RecurrentTogether, seen_as_number
from tests.worlds import Timetable

MISSIONS = [f"foundry_{number}" for number in range(1, 6)]
POLICIES = {"alone": Recurrent, "together": RecurrentTogether, "block": RecurrentBlock}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def steps_of(missions, policy, turns, *, strategy="batched", jobs=0, cogs=None, steps=48, episodes=2):
    """Return digests of every step, all that does not depend on how it was computed, and how agents were asked."""
    found = find_missions(missions, cogs=cogs)
    plan = Plan(tuple(found), entries_of([policy], mix=False), episodes, 5, steps, turns)
    settings = PlaySettings(strategy=strategy, keep_digests=True)
    with Scheduler(plan, settings, PROCESS if jobs else SERIAL, max(1, jobs)) as run:
        run.play(plan.tasks(run.look()), cores=2)
    same = {key: replace(record, timing={}) for key, record in run.records.items()}
    return run.digests, same, [record.timing for record in run.records.values()]


@every_policy
def test_on_every_mission_each_step_is_that_of_sequential_turns(policy):
    expected = steps_of(MISSIONS, policy, "sequential", episodes=1)
    found = steps_of(MISSIONS, policy, "speculative", episodes=1)
    assert found[:2] == expected[:2]
    assert all(record.failure is None for record in found[1].values())
    assert all(timing["conflicts"] > 0 for timing in found[2])
    assert not any("conflicts" in timing for timing in expected[2])


@pytest.fixture(scope="module")
def in_order():
    """Return what sequential turns give, by policy."""
    return {policy: steps_of("foundry_3", policy, "sequential", cogs=5)[:2] for policy in POLICIES.values()}


@pytest.mark.parametrize(
    ("turns", "strategy", "jobs"),
    [
        ("speculative", "sequential", 0),
        ("speculative", "threads", 0),
        ("speculative", "processes", 0),
        ("auto", "batched", 0),
        ("auto", "adaptive", 1),
    ],
)
@every_policy
def test_wherever_agents_choose_each_step_is_that_of_sequential_turns(policy, strategy, jobs, turns, in_order):
    assert steps_of("foundry_3", policy, turns, cogs=5, strategy=strategy, jobs=jobs)[:2] == in_order[policy]


@pytest.mark.parametrize("policy", ["random", "gatherer", "planner", "neural"])
def test_our_own_policies_choose_again_as_if_they_had_not_been_asked(policy):
    if policy == "neural":
        pytest.importorskip("torch")
    expected = steps_of("foundry_2", policy, "sequential", cogs=6, steps=120)
    found = steps_of("foundry_2", policy, "speculative", cogs=6, steps=120)
    assert found[:2] == expected[:2]
    assert all(timing["conflicts"] > 0 for timing in found[2])


def test_after_kills_each_step_is_that_of_sequential_turns():
    asked = {"cogs": 6, "episodes": 40, "steps": 120, "seed": 3}
    expected = stretto.evaluate("foundry_1", Recurrent, jobs=0, turns="sequential", **asked)
    with killing(4, 2) as killed:  # one less than an episode has attempts
        found = stretto.evaluate("foundry_1", Recurrent, jobs=2, turns="speculative", **asked)
    assert killed
    told = [[json.dumps(replace(record, timing={}).as_json()) for record in one.records] for one in (expected, found)]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "table", ["ab ac-abc", "abc bc-abc", "ab _ _-b ac-ac", "_ _-c ab-ab", "abc abc-b abc ac-ac", "abc"]
)
@every_policy
def test_who_could_act_and_cannot_when_it_is_its_turn_has_not_chosen(policy, table):
    # After b has acted, c cannot act in that turn: it was asked, and is as it was before.
    table = table if "-" in table else "abc abc abc abc-abc"
    given = {"policy": policy, "episodes": 1, "steps": None}
    expected = steps_of(partial(Timetable, table), turns="sequential", **given)
    found = steps_of(partial(Timetable, table), turns="speculative", **given)
    assert found[:2] == expected[:2]


class Fails(Recurrent):
    """Cannot choose when nobody has acted before it in its turn, which no agent but the first ever sees."""

    def __init__(self, world=None, agent=""):
        super().__init__(world, agent)
        self.agent = agent

    def step(self, observation):
        chosen = super().step(observation)
        if observation[1] == 0 and self.agent != "a":
            raise ValueError("nobody has acted before me")
        return chosen


def test_a_policy_that_fails_on_what_it_does_not_see_when_it_acts_has_not_failed():
    expected = steps_of(partial(Timetable, "ab ab ac ab-abc"), Fails, "sequential", steps=None)
    found = steps_of(partial(Timetable, "ab ab ac ab-abc"), Fails, "speculative", steps=None)
    assert found[:2] == expected[:2]
    assert all(record.failure is None for record in found[1].values())


class FailsLater(Recurrent):
    def step(self, observation):
        chosen = super().step(observation)
        if observation[0] == 2 and observation[1] == 1:
            raise ValueError("one has acted before me")
        return chosen


def test_a_policy_that_fails_when_it_acts_fails_as_in_sequential_turns():
    expected = steps_of(partial(Timetable, "ab ab ac ab-abc"), FailsLater, "sequential", steps=None)
    found = steps_of(partial(Timetable, "ab ab ac ab-abc"), FailsLater, "speculative", steps=None)
    assert found[1] == expected[1]
    assert [record.failure.message for record in found[1].values()] == [
        "the policy of agent c raised ValueError('one has acted before me')"
    ] * 2


class DrawsGlobally(AgentPolicy):
    stateless = True

    def step(self, observation):
        return int(np.random.randint(8))


@pytest.mark.parametrize("turns", ["speculative", "auto"])
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Forgotten, "its Forgotten is not stateless and has no snapshot and no restore"),
        (DrawsGlobally, "it draws from global generators"),
    ],
)
def test_who_cannot_choose_again_is_asked_when_it_acts_which_is_said_once(policy, reason, turns):
    asked = {"cogs": 3, "episodes": 3, "steps": 30, "jobs": 0}
    expected = stretto.evaluate("foundry_1", policy, turns="sequential", **asked)
    with pytest.warns(TurnsInOrder) as said:
        found = stretto.evaluate("foundry_1", policy, turns=turns, **asked)
    assert [str(one.message) for one in said] == [
        f"agents that follow {found.records[0].label} take sequential turns one after the other, because {reason}"
    ]
    assert [record.statistics for record in found.records] == [record.statistics for record in expected.records]


def test_in_a_mix_only_those_who_can_choose_again_are_asked_ahead():
    asked = {"cogs": 6, "episodes": 2, "steps": 90, "jobs": 0, "mix": True}
    expected = stretto.evaluate("foundry_1", [Recurrent, Forgotten, "random"], turns="sequential", **asked)
    with pytest.warns(TurnsInOrder):
        found = stretto.evaluate("foundry_1", [Recurrent, Forgotten, "random"], turns="speculative", **asked)
    assert [record.statistics for record in found.records] == [record.statistics for record in expected.records]
    timing = found.records[0].timing
    assert timing["turns"] < timing["rounds"] < 6 * timing["turns"]


def choose_by_sight(observation):
    return int(seen_as_number(observation)) % 8


def test_a_plain_function_is_stateless():
    asked = {"cogs": 6, "episodes": 1, "steps": 60, "jobs": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = stretto.evaluate("foundry_5", choose_by_sight, turns="speculative", **asked)
    assert found.records[0].timing["rounds"] < 60
    assert found.records[0].statistics == (
        stretto.evaluate("foundry_5", choose_by_sight, turns="sequential", **asked).records[0].statistics
    )


@pytest.mark.parametrize("turns", ["speculative", "auto"])
def test_the_summary_counts_turns_rounds_and_conflicts(turns):
    report = stretto.evaluate("foundry_1", "random", cogs=4, episodes=3, steps=400, jobs=0, turns=turns)
    timing = report.summary.by_mission[0].timing
    assert timing["turns"] == 300
    assert timing["rounds"] == sum(record.timing["rounds"] for record in report.records)
    assert 300 < timing["rounds"] <= 1200
    assert timing["conflicts"] == sum(record.timing["conflicts"] for record in report.records)
    assert timing["conflicts"] > 0 or turns == "auto"  # which may have asked nobody ahead


def test_auto_plays_worlds_without_turns_as_they_are_and_speculative_refuses_them():
    report = stretto.evaluate("gym:CartPole-v1", "random", episodes=1, steps=5, jobs=0, turns="auto")
    assert report.records[0].failure is None
    with pytest.raises(UsageError, match="only a TurnWorld has speculative turns, got CartPoleEnv"):
        stretto.evaluate("gym:CartPole-v1", "random", episodes=1, steps=5, jobs=0, turns="speculative")


def test_what_was_begun_in_one_of_the_three_goes_on_in_another(tmp_path):
    asked = {"cogs": 3, "steps": 30, "jobs": 0}
    stretto.evaluate("foundry_1", Recurrent, episodes=1, out=tmp_path / "run", turns="sequential", **asked)
    report = stretto.evaluate(
        "foundry_1", Recurrent, episodes=2, out=tmp_path / "run", resume=True, turns="speculative", **asked
    )
    assert ["rounds" in record.timing for record in report.records] == [False, True]
    expected = stretto.evaluate("foundry_1", Recurrent, episodes=2, turns="sequential", **asked)
    assert [record.statistics for record in report.records] == [record.statistics for record in expected.records]
