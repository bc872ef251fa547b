"""What an agent does never depends on where it is computed, nor on who is asked with it: its row is part of the plan."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import replace

import pytest

from stretto.core import AgentPolicy, MultiAgentPolicy
from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.plan import MOST_ROWS, Facts, Plan, batch_rows, entries_of, lockstep
from stretto.missions.mission import Mission
from stretto.policies.spec import PolicySpec
from tests.policies.networks import InGroups, Linear, Recurrent
from tests.worlds import LowBits

pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("workers_with_torch")

EPISODES = 7


def six():
    """Two episodes are played in step."""
    return LowBits(6)


def three():
    """Five episodes are played in step."""
    return LowBits(3, length=5)


def one():
    """Sixteen episodes are played in step."""
    return LowBits(1)


def crowd():
    """There are more agents than rows."""
    return LowBits(MOST_ROWS + 6, length=2)


def two_kinds():
    """Agents differ in what they observe."""
    return LowBits(4, inputs=(27, 25))


POLICIES = {six: Linear, three: Recurrent, one: Recurrent, crowd: Linear, two_kinds: InGroups}


def results(report):
    return [json.dumps(replace(record, timing={}).as_json(), sort_keys=True) for record in report.records]


def run(*missions, **options):
    found = [results(evaluate(one, POLICIES[one], episodes=EPISODES, **options)) for one in missions]
    return [line for lines in found for line in lines]


@functools.cache
def expected(mission, strategy):
    """All agents asked one by one, or all at once: two ways that shall not differ."""
    found = run(mission, jobs=0, strategy=strategy)
    assert all(json.loads(line)["failure"] is None for line in found)
    return found


every_mission = pytest.mark.parametrize("mission", POLICIES, ids=lambda one: one.__name__)


@every_mission
@pytest.mark.parametrize("strategy", ["batched", "threads", "adaptive"])
def test_the_strategy_changes_nothing(mission, strategy):
    assert run(mission, jobs=0, strategy=strategy) == expected(mission, "sequential")


@every_mission
def test_the_order_of_episodes_changes_nothing(mission):
    assert run(mission, jobs=0, strategy="batched", reverse=True) == expected(mission, "sequential")


@every_mission
def test_an_episode_alone_is_as_it_is_among_others(mission):
    among_others = {strategy: expected(mission, strategy) for strategy in ("batched", "sequential")}
    for strategy, other in (("batched", "sequential"), ("sequential", "batched")):
        alone = run(mission, jobs=0, strategy=strategy, only=[1, 4, 6])
        assert alone == [among_others[other][episode] for episode in (1, 4, 6)]


# Every way of sharing out work has one test, and not every mission.
@pytest.mark.parametrize(
    ("missions", "jobs", "strategy", "other"),
    [
        ((six, three), 1, "sequential", "batched"),
        ((six, three), 2, "batched", "sequential"),
        ((six, two_kinds), 3, "sequential", "batched"),
        ((six, three), 0, "processes", "batched"),
        ((six, crowd), 2, "processes", "batched"),
        ((six, one), 2, "adaptive", "sequential"),
    ],
)
def test_the_number_of_jobs_changes_nothing(missions, jobs, strategy, other):
    found = run(*missions, jobs=jobs, strategy=strategy, parallel_policy=strategy == "processes")
    assert found == [line for mission in missions for line in expected(mission, other)]


def test_a_run_that_was_cut_short_goes_on_as_if_it_had_not_been(tmp_path):
    run(six, jobs=0, strategy="batched", only=[1, 2], out=tmp_path)
    whole = run(six, jobs=0, strategy="sequential", out=tmp_path, resume=True)
    assert whole == expected(six, "batched")


class Faulty(Recurrent):
    """Fails for agent_2 in its third step, in about half of the episodes."""

    def step_batch(self, agent_policies, observations):
        actions = super().step_batch(agent_policies, observations)
        for one in agent_policies:
            one.steps = getattr(one, "steps", 0) + 1
            if one.agent == "agent_2" and one.steps == 3 and one.rng.random() < 0.5:
                raise ValueError("that is enough")
        return actions


def test_of_a_batch_that_raises_the_agent_is_named_who_would_be_if_asked_alone():
    found = {
        strategy: results(evaluate(six, Faulty, episodes=EPISODES, jobs=0, strategy=strategy))
        for strategy in ("sequential", "batched", "threads", "adaptive")
    }
    failures = [json.loads(line)["failure"] for line in found["sequential"]]
    assert {failure and failure["agent"] for failure in failures} == {None, "agent_2"}
    assert all(lines == found["sequential"] for lines in found.values())


# ---- the plan ----


def rows_of(agents, episodes):
    """Return the rows of a batch, and the place of each agent of each episode in it."""
    names = tuple(f"agent_{i}" for i in range(agents))
    rows = batch_rows(Facts(names, (frozenset(),), (True,)), 0)
    plan = Plan((Mission("crowd", crowd),), entries_of([Linear], mix=False), 99, 0)
    firsts = [plan.episode(0, 0, episode, names).first_row for episode in episodes]
    return rows, [(first + i) % rows for first in firsts for i in range(agents)]


@pytest.mark.parametrize("agents", [1, 2, 3, 6, 16, 17, MOST_ROWS])
def test_all_agents_of_the_episodes_in_step_have_rows_of_their_own(agents):
    together = lockstep(Facts(("agent",) * agents, (frozenset(),), (True,)))
    for group in (range(together), range(3 * together, 4 * together)):
        rows, places = rows_of(agents, group)
        assert sorted(places) == list(range(rows))


def test_more_agents_than_rows_are_in_several_batches_of_about_one_size():
    assert [rows_of(agents, [0])[0] for agents in (64, 65, 128, 130)] == [64, 33, 64, 44]
    assert rows_of(130, [5])[1] == [i % 44 for i in range(130)]


class Sure(Linear):
    rows_interchangeable = True


class Unsure(Linear):
    rows_interchangeable = False


def test_the_record_says_which_batches_there_were(tmp_path):
    report = evaluate(six, [Sure, Unsure, "random"], episodes=1, jobs=0, out=tmp_path)
    found = {name: {"rows": 12, "rows_interchangeable": sure} for name, sure in (("Sure", True), ("Unsure", False))}
    assert report.plan["batches"] == {"test_rows:six": found}
    assert json.loads((tmp_path / "summary.json").read_text())["plan"]["batches"] == report.plan["batches"]


class Samples(MultiAgentPolicy):
    """Its agents draw from their action space when they are made, and, if it `samples`, whenever it is asked for many."""

    def __init__(self, world, samples=False):
        self.world, self.samples = world, samples

    def agent_policy(self, agent):
        return Sampled(agent, copy.deepcopy(self.world.action_spaces[agent]).sample())

    def step_batch(self, agent_policies, observations):
        spaces = self.world.action_spaces
        return [spaces[one.agent].sample() if self.samples else one.action for one in agent_policies]


class Sampled(AgentPolicy):
    def __init__(self, agent, action):
        self.agent, self.action = agent, action


@pytest.mark.parametrize("strategy", ["sequential", "batched", "processes"])
def test_step_batch_must_not_draw_from_the_spaces_that_episodes_share(strategy):
    how = {"episodes": 2, "steps": 3, "cogs": 2, "jobs": 0, "strategy": strategy}
    good, bad = PolicySpec("good", Samples, {}), PolicySpec("bad", Samples, {"samples": True})
    report = evaluate("foundry_1", [good, bad], **how)
    assert [record.failure for record in report.records[:2]] == [None, None]
    assert [record.failure.kind for record in report.records[2:]] == ["UsageError"] * 2
    assert "step_batch must not draw from world.action_spaces" in report.records[2].failure.message
