"""Whether agents are asked ahead of their turn, and how they are brought back to before they were."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from stretto.core import AgentPolicy
from stretto.errors import UsageError
from stretto.policies.ahead import FasterWay
from stretto.policies.undo import Undo, why_not_again
from stretto.seeding import generator_memory
from tests.policies.recurrent import Forgotten, Recurrent


def played(way, portions, seconds, at_once=False):
    """Play portions of one action, each of which takes so long: ahead, and in order. Return what was chosen for each.

    What is played in order is played `at_once` until somebody has to look, or action by action.
    """
    chosen = []
    while len(chosen) < portions:
        acts = way.settled_for(1) if at_once and not way.ahead else 1
        chosen += [way.ahead] * acts
        way.add(acts, acts * seconds[way.ahead], 1)
    return chosen


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize(("ahead", "in_order"), [(1.0, 3.0), (3.0, 1.0), (1.0, 1.2), (1.2, 1.0)])
def test_the_faster_way_is_used_nearly_always(ahead, in_order, at_once):
    chosen = played(FasterWay("auto"), 3000, {True: ahead, False: in_order}, at_once)
    slower = chosen.count(ahead > in_order)
    assert slower * max(ahead, in_order) < 0.05 * 3000 * min(ahead, in_order)
    assert set(chosen[100:]) == {True, False}  # the other one is tried again


def test_where_asking_ahead_is_five_times_as_slow_auto_loses_little_in_its_first_hundred_turns():
    chosen = played(FasterWay("auto"), 100, {True: 5.0, False: 1.0}, at_once=True)
    assert chosen.count(True) == 1


def test_what_becomes_the_faster_way_is_found():
    way = FasterWay("auto")
    played(way, 200, {True: 1.0, False: 2.0})
    assert played(way, 4000, {True: 4.0, False: 2.0})[-1] is False


@pytest.mark.parametrize(("name", "ahead"), [("speculative", True), ("sequential", False)])
def test_what_was_asked_for_is_never_changed(name, ahead):
    assert set(played(FasterWay(name), 500, {True: 2.0, False: 1.0} if ahead else {True: 1.0, False: 2.0})) == {ahead}


def test_an_agent_chooses_the_same_again_with_all_that_it_draws_from():
    class World:
        action_spaces = {"a": spaces.Discrete(8, seed=4)}  # noqa: RUF012

    policy, rng = Recurrent(World, "a"), np.random.default_rng(3)
    policy.reset(rng)
    undo = Undo(policy, rng, World.action_spaces["a"])
    for seen in np.random.default_rng(1).random((20, 3)):
        undo.keep()
        policy.step(seen + 1)
        undo.take_back()
        before = list(policy.memory)
        first = policy.step(seen)
        undo.take_back()
        assert policy.memory == before
        assert policy.step(seen) == first


class Stateless(AgentPolicy):
    stateless = True


def test_who_is_neither_stateless_nor_can_be_restored_is_refused():
    assert why_not_again(Stateless()) == why_not_again(Recurrent()) == ""
    with pytest.raises(UsageError, match="only if its policy can be restored, and its Forgotten is not stateless"):
        Undo(Forgotten(), None, None)


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox], ids=lambda one: one.__name__)
@pytest.mark.parametrize("seen", [True, False], ids=["in memory", "asked"])
def test_a_generator_goes_on_from_where_it_was_read(monkeypatch, bits, seen):
    if not seen:
        monkeypatch.setattr(generator_memory, "_pcg_can_be_seen", lambda: False)
    generator = np.random.Generator(bits(5))

    def draw():
        return [
            generator.integers(100, dtype=np.int32),
            *generator.normal(size=3),
            generator.integers(9, dtype=np.int8),
        ]

    for _ in range(5):
        draw()
        read, write = generator_memory.generator_memory(generator.bit_generator)
        state = read()
        expected = [draw(), draw()]
        write(state)
        assert [draw(), draw()] == expected


def test_on_this_machine_the_state_is_seen_in_memory():
    assert generator_memory._pcg_can_be_seen()
