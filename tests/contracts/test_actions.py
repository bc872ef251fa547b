"""A bad action is refused before anything is sent, with the slot and the rule."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.testing import check_same
from tests.backends import every_backend
from tests.worlds import CountTo, Crowd, Echo, KeepsActions, Words, makes


class Careless(Words):
    """A custom space whose test takes every value for a sequence."""

    def contains(self, x):
        return len(x) == 1


# A space, what is given for two slots, and the words that the refusal must have.
REFUSED = {
    "too large": (spaces.Discrete(3), [0, 3], "slot 1 must be from 0 to 2, got 3"),
    "too small": (spaces.Discrete(3), [-1, 0], "slot 0 must be from 0 to 2, got -1"),
    "below the start": (spaces.Discrete(3, start=5), [5, 4], "slot 1 must be from 5 to 7, got 4"),
    "real numbers": (spaces.Discrete(3), [0.0, 1.0], "must be numbers of type int64, got float64"),
    "text": (spaces.Discrete(3), ["0", "1"], "must be numbers of type int64"),
    "nothing": (spaces.Discrete(3), [None, 1], "must be numbers of type int64"),
    "too few": (spaces.Discrete(3), [0], r"shape \(2,\), one row for each slot, got shape \(1,\)"),
    "too many": (spaces.Discrete(3), [0, 0, 0], r"shape \(2,\)"),
    "one for all": (spaces.Discrete(3), 1, r"shape \(2,\)"),
    "an array of no dimension": (spaces.Discrete(3), np.array(1), r"shape \(2,\)"),
    "arrays, too many": (spaces.Discrete(3), np.array([0, 0, 0]), r"shape \(2,\)"),
    "one more dimension": (spaces.Discrete(3), [[0], [0]], r"shape \(2,\)"),
    "a ragged list": (spaces.Box(-1, 1, (2,)), [[0, 0], [0]], "shape"),
    "one of several too large": (spaces.MultiDiscrete([2, 3]), [[0, 0], [2, 0]], r"slot 1 must be in .*\[2 0\]"),
    "no bit": (spaces.MultiBinary(2), [[0, 1], [0, 2]], "slot 1"),
    "NaN": (spaces.Box(-1, 1, (2,)), [[0, 0], [0, np.nan]], r"slot 1 must be without NaN"),
    "another shape": (spaces.Box(-1, 1, (2,)), np.zeros((2, 3)), r"shape \(2, 2\)"),
    "a shape that would broadcast": (spaces.Box(-1, 1, (2,)), np.zeros((2, 1)), r"shape \(2, 2\)"),
    "too large for bytes": (spaces.Box(0, 255, (1,), np.uint8), [[0], [256]], "must fit into uint8, got 0 to 256"),
    "integers out of bounds": (spaces.Box(0, 9, (1,), np.int32), [[0], [10]], "slot 1"),
    "a part too large": (spaces.Dict({"a": spaces.Discrete(2)}), {"a": [0, 2]}, r"action\['a'\] of slot 1"),
    "a part missing": (spaces.Dict({"a": spaces.Discrete(2)}), {"b": [0, 1]}, r"part\['a'\]"),
    "an element missing": (spaces.Tuple([spaces.Discrete(2)] * 2), ([0, 1],), r"part\[1\]"),
    "no text": (spaces.Text(3), [1, "a"], "slot 0 must be in Text"),
    "too long a text": (spaces.Text(3), ["abcd", "a"], "slot 0 must be in Text.*'abcd'"),
    "too few texts": (spaces.Text(3), ["a"], "one for each of 2 slots, got 1"),
    "no texts at all": (spaces.Text(3), None, "sequence of 2 values"),
    "what the space's own test cannot look at": (Careless(), [5, ["go"]], "slot 0 must be in .*, got 5 .*TypeError"),
}

ACCEPTED = {
    "a list": (spaces.Discrete(3), [0, 2]),
    "a tuple": (spaces.Discrete(3), (0, 2)),
    "small integers": (spaces.Discrete(3), np.array([0, 2], np.int8)),
    "unsigned integers": (spaces.Discrete(3), np.array([0, 2], np.uint8)),
    "truth values": (spaces.Discrete(2), [False, True]),
    "float64 for float32": (spaces.Box(-1, 1, (2,)), np.zeros((2, 2))),
    "integers for real numbers": (spaces.Box(-1, 1, (2,)), [[0, 0], [1, 1]]),
    "outside the bounds, as learners do": (spaces.Box(-1, 1, (2,)), np.full((2, 2), 5.0)),
}


# The caller refuses them, whatever its workers are.
@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_slot_rule_and_value(case):
    space, actions, words = REFUSED[case]
    with stretto.make_vec(makes(Echo, space, 99), 2, backend="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.InvalidAction, match=words):
            envs.step(actions)
        with pytest.raises(stretto.InvalidAction, match=words):
            envs.send(actions)
        assert envs.get_attr("steps") == (0, 0)


class BoxCrowd(Crowd):
    """Its lions act with real numbers, its mice choose twice, its hare has parts."""

    def __init__(self):
        super().__init__()
        self.possible_agents = [*self.possible_agents, "hare"]

    def action_space(self, agent):
        if agent == "hare":
            return spaces.Dict({"leap": spaces.Discrete(3), "call": spaces.Text(3)})
        return spaces.Box(-1, 1, (2,)) if agent.startswith("lion") else spaces.MultiDiscrete([3, 2])


# Whose actions, what is given for two slots, and the words that the refusal must have.
REFUSED_AGENTS = {
    "too large": ("mouse_1", [[0, 0], [3, 0]], r"action of 'mouse_1' of slot 1 must be in MultiDiscrete.*got \[3 0\]"),
    "too small": ("mouse_0", [[0, -1], [0, 0]], r"action of 'mouse_0' of slot 0 must be in .*got \[ 0 -1\]"),
    "NaN": ("lion_1", [[0, 0], [0, np.nan]], r"action of 'lion_1' of slot 1 must be without NaN, got \[ 0. nan\]"),
    "text": ("lion_0", [["a", "b"], ["c", "d"]], "actions of 'lion_0' must be numbers of type float32"),
    "another shape": ("lion_1", np.zeros((2, 3)), r"actions of 'lion_1' must have shape \(2, 2\).*got shape \(2, 3\)"),
    "one for all": ("lion_1", 0.0, r"actions of 'lion_1' must have shape \(2, 2\).*got shape \(\)"),
    "a part too large": ("hare", {"leap": [0, 3], "call": "ab"}, r"action\['leap'\] of 'hare' of slot 1 must be"),
    "a part too long": (
        "hare",
        {"leap": [0, 0], "call": ["a", "abcd"]},
        r"action\['call'\] of 'hare' of slot 1 must be",
    ),
    "a part missing": ("hare", {"leap": [0, 0]}, r"\['call'\] of 'hare'"),
    "nothing": ("lion_0", None, "'lion_0' can in slot 0 and has no action"),
}


@pytest.mark.parametrize("case", REFUSED_AGENTS)
def test_one_of_several_agents_is_refused_with_the_slot_and_the_agent(case):
    agent, column, words = REFUSED_AGENTS[case]
    with stretto.make_vec(BoxCrowd, 2, backend="serial") as envs:
        envs.reset(seed=0)
        good = {each: envs.action_space(each).sample() for each in envs.possible_agents}
        for act in (envs.step, envs.send):
            with pytest.raises(stretto.InvalidAction, match=words):
                act({**good, agent: column})
        envs.step(good)
        assert envs.get_attr("steps") == (1, 1)


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_keeps_its_value_passes(case):
    space, actions = ACCEPTED[case]
    with stretto.make_vec(makes(TakesAnything, space), 2, backend="process", workers=2) as envs:
        envs.reset(seed=0)
        assert np.array_equal(envs.step(actions).observations, np.asarray(actions))


class TakesAnything(Echo):
    def move(self, action):
        return action, 0.0, False, False, {}


@every_backend
def test_after_a_refusal_it_goes_on_as_if_nothing_was_asked(options):
    with stretto.make_vec(CountTo, 3, **options) as envs:
        envs.reset(seed=0)
        envs.step([1, 2, 3])
        with pytest.raises(stretto.InvalidAction, match="slot 2"):
            envs.step([1, 2, 4])
        assert envs.step([3, 2, 1]).observations.tolist() == [[2, 3], [2, 2], [2, 1]]
        assert envs.statistics().steps == 6


@every_backend
def test_a_world_may_keep_its_action_and_the_caller_its_array(options):
    with stretto.make_vec(KeepsActions, 2, **options) as envs:
        envs.reset(seed=0)
        given = np.zeros((2, 2), np.float32)
        for number in range(1, 5):
            given[:] = number
            result = envs.step(given)
        check_same(result.observations, np.full((2, 2), 1 + 2 + 3 + 4, np.float32), "the sum of the kept actions")


@every_backend
def test_ids_that_cannot_be_sent_are_refused(options):
    with stretto.make_vec(CountTo, 3, **options) as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.UsageError, match=r"from 0 to 2, got \[3\]"):
            envs.send([0], [3])
        with pytest.raises(stretto.UsageError, match="must be different"):
            envs.send([0, 0], [1, 1])
        with pytest.raises(stretto.InvalidAction, match="slot 2 must be from 0 to 3, got 9"):
            envs.send([0, 9], [1, 2])
        with pytest.raises(stretto.UsageError, match="call send"):
            envs.recv()
        envs.send([0], [1])
        with pytest.raises(stretto.UsageError, match="slot 1 was not"):
            envs.send([0], [1])
        with pytest.raises(stretto.UsageError, match="1 are under way"):
            envs.step([0, 0, 0])
        with pytest.raises(stretto.UsageError, match="1 are under way"):
            envs.get_attr("steps")
        assert envs.recv().ids.tolist() == [1]
        assert envs.get_attr("steps") == (0, 1, 0)
