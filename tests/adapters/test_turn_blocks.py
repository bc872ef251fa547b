"""A game in sequential turns as an environment that stops where an agent has to be asked."""

from __future__ import annotations

import numpy as np
import pytest

import stretto
from stretto.adapters.agents import as_agents
from stretto.adapters.turn_blocks import CHOSEN, FOR_GOOD, NOTHING, TurnBlocks
from stretto.errors import UsageError
from stretto.games.foundry import Foundry
from tests.worlds import Timetable

AGENTS = "abc"


def blocks(table):
    return TurnBlocks(as_agents(Timetable(table), "sequential"))


def given(**codes):
    return np.array([codes.get(agent, NOTHING) for agent in AGENTS], np.uint8)


def said(value):
    """Who has to act, who can be asked ahead, who has acted in the turn that is over, if one is."""
    names = {name: "".join(a for a, on in zip(AGENTS, value[name], strict=True) if on) for name in ("acting", "ahead")}
    acted = "".join(a for a, on in zip(AGENTS, value["acted"], strict=True) if on)
    return names["acting"], names["ahead"], acted if value["turned"][0] else None


NO_ACTIONS = (np.zeros(3, np.int64),)


def test_one_after_the_other_each_is_shown_what_it_sees_when_it_acts():
    env = blocks("ab ac-abc")
    value, _ = env.reset(seed=0)
    assert said(value) == ("a", "b", "")
    value, _, over, *_ = env.step((*NO_ACTIONS, given(a=CHOSEN)))
    assert (said(value), over) == (("b", "", None), False)
    assert value["blocks"][0].tolist() == [[0, 0, 0], [0, 1, 1], [0, 0, 0]]  # b alone is shown again
    assert not value["reward"].any()
    value, *_ = env.step((*NO_ACTIONS, given(b=CHOSEN)))
    assert said(value) == ("a", "c", "ab")
    assert value["reward"].tolist() == [1, 1, 1]
    env.step((*NO_ACTIONS, given(a=CHOSEN)))
    value, _, over, *_ = env.step((np.array([0, 0, 4]), given(c=CHOSEN)))
    assert (said(value), over) == (("", "", "ac"), True)
    assert value["reward"].tolist() == [2, 2, 402]
    assert value["terminated"].all()


def test_who_chose_on_what_it_does_not_see_any_more_is_shown_that_and_its_choice_is_gone():
    env = blocks("ab ab-abc")
    env.reset(seed=0)
    value, *_ = env.step((np.array([1, 2, 0]), given(a=CHOSEN, b=CHOSEN)))
    assert said(value) == ("b", "", None)  # a has acted meanwhile
    value, *_ = env.step((np.array([7, 3, 0]), given(b=CHOSEN)))
    assert said(value) == ("a", "b", "ab")
    assert value["reward"].tolist() == [101, 301, 1]


def test_actions_that_count_for_good_are_applied_whatever_agents_see():
    env = blocks("ab ab-abc")
    env.reset(seed=0)
    value, *_ = env.step((np.array([1, 2, 0]), given(a=FOR_GOOD, b=FOR_GOOD)))
    assert said(value) == ("a", "b", "ab")
    assert value["reward"].tolist() == [101, 201, 1]


def test_nothing_happens_while_whoever_has_to_act_has_no_action():
    env = blocks("ab ab-abc")
    env.reset(seed=0)
    for _ in range(2):
        value, *_ = env.step((*NO_ACTIONS, given(b=CHOSEN)))
        assert said(value)[0] == "a"
        assert not value["reward"].any()


def play(seed, turns, *, ahead):
    """Play Foundry with actions that follow from what is seen; return what was done, seen and given in every turn."""
    env = TurnBlocks(as_agents(Foundry(7), "sequential"))
    value, _ = env.reset(seed=seed)
    found, steps = [], 0
    for turn in range(turns):
        row = {}
        while True:
            asked = value["acting"] | value["ahead"] if ahead else value["acting"].copy()
            actions = np.zeros(7, np.int64)
            for j in np.flatnonzero(asked):
                planes = value["blocks"][0]["planes"][j].copy()
                actions[j] = (int(planes.astype(np.int64).sum()) * 7 + turn + j) % 6
                row[j] = planes.tobytes(), int(actions[j])
            value, *_ = env.step((actions, asked.astype(np.uint8) * np.uint8(CHOSEN)))
            steps += 1
            if value["turned"][0]:
                break
        found.append((row, value["reward"].tolist(), value["blocks"][0]["self"].tolist()))
    return found, steps


def test_asked_ahead_or_in_order_every_turn_is_the_same():
    ahead, few = play(3, 40, ahead=True)
    in_order, many = play(3, 40, ahead=False)
    assert ahead == in_order
    assert few < many == 7 * 40


@pytest.mark.parametrize("turns", ["speculative", "auto"])
def test_a_vector_environment_has_no_policies_to_ask_ahead(turns):
    with pytest.raises(
        UsageError, match=r"turns must be one of .simultaneous., .sequential., got .* to evaluate, collect"
    ):
        stretto.make_vec("foundry_1", 2, turns=turns)
