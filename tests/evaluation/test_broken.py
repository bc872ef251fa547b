"""A policy or a world that cannot even be built fails its own episodes, and nobody else's."""

from __future__ import annotations

import gymnasium
import pytest

import stretto
from stretto.core import AgentPolicy, MultiAgentPolicy
from stretto.errors import UsageError


class OnlyForTwo(MultiAgentPolicy):
    """Cannot be built for one agent alone."""

    def __init__(self, world):
        super().__init__(world)
        if len(world.agents) == 1:
            raise RuntimeError("one is not enough")

    def agent_policy(self, agent):
        return Zero()


class Zero(AgentPolicy):
    def step(self, observation):
        return 0


def no_licence():
    raise RuntimeError("no licence")


def results(report):
    return {
        (record.mission, record.label): (record.failure.kind, record.failure.policy) if record.failure else record.steps
        for record in report.records
    }


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_policy_that_cannot_be_built_for_one_mission_plays_the_others(jobs):
    report = stretto.evaluate(["foundry_1", "gym:CartPole-v1"], [OnlyForTwo, Zero], episodes=1, steps=5, jobs=jobs)
    assert results(report) == {
        ("foundry_1", "OnlyForTwo"): 5,
        ("foundry_1", "Zero"): 5,
        ("gym:CartPole-v1", "OnlyForTwo"): ("RuntimeError", "OnlyForTwo"),
        ("gym:CartPole-v1", "Zero"): 5,
    }
    failed = next(record for record in report.records if record.failure)
    assert "gym:CartPole-v1 with OnlyForTwo cannot be played: RuntimeError: one is not enough" in failed.failure.message
    assert "one is not enough" in failed.failure.traceback


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_mission_that_cannot_be_made_fails_for_all_policies_and_is_nobodys_fault(jobs):
    report = stretto.evaluate([no_licence, "gym:CartPole-v1"], [OnlyForTwo, Zero], episodes=1, steps=5, jobs=jobs)
    told = results(report)
    assert (
        told["test_broken:no_licence", "Zero"] == told["test_broken:no_licence", "OnlyForTwo"] == ("RuntimeError", None)
    )
    assert told["gym:CartPole-v1", "Zero"] == 5


def test_where_nothing_can_be_played_it_is_told_at_once():
    with pytest.raises(RuntimeError, match="no licence"):
        stretto.evaluate(no_licence, Zero, episodes=1, jobs=0)


def test_what_was_asked_for_wrongly_is_told_at_once():
    with pytest.raises(UsageError):
        stretto.evaluate(["gym:CartPole-v1", lambda: gymnasium], "random", episodes=1, jobs=0)
