"""The loop that plays: what an agent is charged for its time, to the second."""

from __future__ import annotations

import pytest

from stretto.adapters.agents import as_agents
from stretto.games.foundry import Foundry
from stretto.policies.actors import Decision
from stretto.rollout import Deadline, EpisodePlan, play


class Clocked:
    """A runner in which everybody does nothing, and takes the seconds that were given for each step and agent."""

    def __init__(self, *steps):
        self.steps = iter(steps)
        self.limits = set()

    def begin(self, roles):
        pass

    def ask(self, questions, limit_seconds=None):
        self.questions = questions
        self.limits.add(limit_seconds)

    def replies(self):
        return [Decision(0, seconds, 0.0) for _, seconds in zip(self.questions, next(self.steps), strict=True)]

    def end(self, episode):
        return frozenset()

    def close(self):
        pass


def played(runner, steps, **limits):
    world = as_agents(Foundry(2))
    plan = EpisodePlan(0, 1, {"cog_0": 0, "cog_1": 0})
    (one,) = play([world], runner, [plan], max_steps=steps, deadline=Deadline(**limits))
    world.close()
    return one


def test_each_agent_has_a_bank_of_its_own_and_pays_only_what_exceeds_its_time():
    # cog_0 exceeds its second by 1 and 2, which empties the bank of 3, and then by 0.5; cog_1 by 2 and 1.
    runner = Clocked((2, 1), (1, 1), (3, 3), (1, 1), (1.5, 2))
    one = played(runner, 5, action_seconds=1.0, overage_seconds=3.0, has_default=True, default_action=0)
    assert one.overdue == {"cog_0": 1}
    assert (one.steps, one.trouble) == (5, None)


def test_once_the_bank_is_empty_every_late_step_counts():
    runner = Clocked((5, 1), (2, 1), (1, 1), (1.01, 1))
    one = played(runner, 4, action_seconds=1.0, overage_seconds=3.0, has_default=True, default_action=0)
    assert one.overdue == {"cog_0": 3}


def test_without_a_default_action_the_first_late_step_ends_the_episode():
    one = played(Clocked((1, 1), (1, 1.5)), 5, action_seconds=1.0)
    assert one.overdue == {"cog_1": 1}
    assert (one.trouble.kind, one.trouble.agent, one.trouble.step, one.trouble.lost) == (
        "PolicyOverdue",
        "cog_1",
        1,
        False,
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"hang_seconds": 60.0}, 60.0),
        ({"hang_seconds": 60.0, "action_seconds": 0.1, "overage_seconds": 2.0}, 12.1),  # and 10 s for the way
        ({"hang_seconds": 1.0, "action_seconds": 0.1}, 1.0),
        ({"hang_seconds": 1.0, "action_seconds": 5.0}, 5.0),  # never before its time is up
        ({"action_seconds": 5.0}, 15.0),
    ],
)
def test_a_policy_is_ended_only_when_it_hangs_and_not_when_it_is_merely_late(limits, expected):
    runner = Clocked((0, 0))
    played(runner, 1, **limits)
    assert runner.limits == {expected}
