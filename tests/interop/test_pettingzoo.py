"""A game in turns as a PettingZoo parallel environment."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.errors import UsageError
from stretto.interop.pettingzoo import ParallelTurns
from tests.worlds import Timetable

pettingzoo = pytest.importorskip("pettingzoo")

TABLE = "_ abc _-b ac a _-a c-c"


def test_it_passes_the_test_of_pettingzoo_where_turns_are_skipped_and_agents_end():
    from pettingzoo.test import parallel_api_test

    env = ParallelTurns(Timetable(TABLE))
    assert isinstance(env, pettingzoo.ParallelEnv)
    parallel_api_test(env, num_cycles=30)


def test_everybody_who_is_left_is_observed_and_who_cannot_act_may_be_left_out():
    env = ParallelTurns(Timetable(TABLE))
    seen, infos = env.reset(seed=0)
    assert (sorted(seen), sorted(infos), env.num_agents) == (["a", "b", "c"], ["a", "b", "c"], 3)
    seen, rewards, terminated, _, _ = env.step({"a": 0, "b": 0, "c": 0})
    assert (sorted(seen), env.agents) == (["a", "b", "c"], ["a", "c"])
    assert rewards == {"a": 1 + 2 + 4, "b": 1 + 2 + 4, "c": 1 + 2 + 4}
    assert terminated == {"a": False, "b": True, "c": False}
    env.step({"a": 0, "c": 0})
    assert env.step({"a": 0})[2] == {"a": True, "c": False}
    with pytest.raises(UsageError, match="got none for 'c'"):
        env.step({})


def test_the_stream_of_the_game_can_be_read_and_set():
    env = ParallelTurns(Timetable(TABLE))
    env.np_random = np.random.default_rng(3)
    assert env.np_random is env.turn_world._np_random
