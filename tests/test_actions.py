"""An action that is none is its policy's fault, not the world's."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.actions import complaint

BOX = spaces.Box(-1, 1, (2,), np.float32)
MANY = spaces.MultiDiscrete([3, 4])


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3), 2),
        (spaces.Discrete(3), np.int64(0)),
        (spaces.Discrete(3), np.array(1)),
        (spaces.Discrete(3), np.array([1])),
        (spaces.Discrete(2), True),
        (spaces.Discrete(3), 2.0),
        (spaces.Discrete(3, start=-1), -1),
        (BOX, [0.5, 0.5]),
        (BOX, np.array([9.0, -9.0])),  # worlds clip
        (MANY, (2, 3)),
        (spaces.MultiBinary(2), [0, 1]),
        (spaces.Text(5), "left"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": 1}),
    ],
)
def test_what_a_world_could_take_is_left_to_it(space, action):
    assert complaint(space, action) is None


@pytest.mark.parametrize(
    ("space", "action", "told"),
    [
        (spaces.Discrete(3), 3, r"must be in Discrete\(3\), got 3"),
        (spaces.Discrete(3), -1, "got -1"),
        (spaces.Discrete(3), None, "got None"),
        (spaces.Discrete(3), 0.5, r"got 0\.5"),
        (spaces.Discrete(3, start=1), 0, "got 0"),
        (spaces.Discrete(3), np.array([1, 2]), "got array"),
        (BOX, [0.5], r"must have shape \(2,\), got shape \(1,\)"),
        (BOX, [np.nan, 0.0], "got NaN"),
        (BOX, None, "got"),
        (BOX, "left", "must be numbers"),
        (MANY, (3, 0), "must be in MultiDiscrete"),
        (spaces.Text(5), None, "got None"),
    ],
)
def test_what_is_no_action_is_told(space, action, told):
    import re

    assert re.search(told, complaint(space, action) or "")


@pytest.mark.parametrize("action", [7, None, "left"])
@pytest.mark.parametrize("jobs", [0, 2])
def test_the_policy_and_the_agent_are_named(action, jobs):
    def policy(observation):
        return action

    report = stretto.evaluate("gym:CartPole-v1", [policy, "random"], episodes=2, jobs=jobs)
    for record in report.records:
        if record.label == "random":
            assert record.failure is None
        else:
            assert record.failure is not None
            assert record.failure.kind == "InvalidAction"
            assert record.failure.message == f"the action of agent agent_0 must be in Discrete(2), got {action!r}"
            assert (record.failure.policy, record.failure.agent, record.failure.step) == ("policy", "agent_0", 1)
