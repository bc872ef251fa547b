"""A rollout gives the same steps wherever its worlds are: in place, or behind any workers, also those that die."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.adapters.agents import as_agents
from stretto.adapters.local import LocalWorlds
from stretto.collection.worlds import VectorWorlds
from stretto.errors import UsageError
from stretto.games.foundry import Foundry
from stretto.policies.actors import PolicyPlan
from stretto.policies.runners import InPlace
from stretto.policies.spec import PolicySpec
from stretto.rollout import EpisodePlan, rollout
from stretto.testing.values import check_same
from tests.worlds import CountTo, Crowd, Drift, Echo, Timetable

ANY = spaces.Dict(
    {"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Tuple((spaces.Discrete(3, start=2), spaces.Text(5)))}
)
WORLDS = {
    "one agent": (Drift, "simultaneous"),
    "any space": (partial(Echo, ANY), "simultaneous"),
    "agents that come and go": (partial(Timetable, "abc ab-c - a b-b a-a"), "simultaneous"),
    "parallel": (Crowd, "simultaneous"),
    "turns": (partial(Foundry, 3), "simultaneous"),
    "one after the other": (partial(Foundry, 3), "sequential"),
}
WHERE = {
    "serial": {"backend": "serial"},
    "threads": {"backend": "thread", "workers": 2},
    "processes": {"backend": "process", "workers": 2},
    "all in processes": {"backend": "process", "workers": 3, "isolate": True},
    "messages alone": {"backend": "process", "workers": 2, "transport": "message"},
}


def in_place(make, turns, count):
    return LocalWorlds(lambda _: as_agents(make(), turns), count)


def behind(make, turns, count, **where):
    return VectorWorlds(stretto.make_vec(make, count, autoreset_mode="Disabled", turns=turns, **where))


def in_order(value):
    """A value by the order of its keys, which is not the worlds' business, and without agents of which nothing is told."""
    if isinstance(value, Mapping):
        return {key: in_order(value[key]) for key in sorted(value) if not isinstance(value[key], dict) or value[key]}
    return tuple(map(in_order, value)) if isinstance(value, tuple) else value


def steps_of(worlds, episodes=7, disturb=lambda number: None):
    """What a rollout of random policies gives: for every step all that it has, but the time that it took."""
    runner = InPlace([PolicyPlan(PolicySpec.of("random"))], worlds.spec, batched=True)
    plans = [EpisodePlan(number, 100 + number, dict.fromkeys(worlds.spec.agents, 0)) for number in range(episodes)]
    found = []
    try:
        for number, steps in enumerate(rollout(worlds, runner, plans, max_steps=25)):
            disturb(number)
            for one in steps:
                fault = one.fault and (type(one.fault.error).__name__, one.fault.whose)
                statistics = worlds.statistics(one.slot) if one.over and fault is None else None
                outcome = one.outcome and [in_order(getattr(one.outcome, name)) for name in one.outcome.__slots__]
                found.append([one.slot, one.plan.episode, one.steps, one.actions, outcome, one.over, fault, statistics])
    finally:
        worlds.close()
    return found


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("world", WORLDS)
def test_behind_workers_as_in_place(world, where):
    make, turns = WORLDS[world]
    expected = steps_of(in_place(make, turns, 4))
    assert len(expected) > 30
    found = steps_of(behind(make, turns, 4, **WHERE[where]))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        check_same(one, other, "a step")


@pytest.mark.parametrize("world", ["one agent", "parallel", "one after the other"])
def test_workers_that_are_killed_leave_no_trace(world):
    make, turns = WORLDS[world]
    expected = steps_of(in_place(make, turns, 4))
    worlds = behind(make, turns, 4, backend="process", workers=2, isolate=True)
    killed = []

    def kill(number):
        if number in (3, 7):
            killed.append(worlds.envs.worker_pids[number % 2])
            os.kill(killed[-1], signal.SIGKILL)

    found = steps_of(worlds, disturb=kill)
    assert len(killed) == 2
    check_same(found, expected, "all steps")


class Breaks(CountTo):
    """Breaks in its third step in episodes with an even seed, and is as new after a reset."""

    def reset(self, *, seed=None, options=None):
        self.breaks = seed % 2 == 0
        if seed == 105:
            raise KeyError("no such level")
        return super().reset(seed=seed, options=options)

    def move(self, action):
        if self.breaks and self.steps == 3:
            raise ValueError("broken")
        return super().move(action)


@pytest.mark.parametrize("where", WHERE)
def test_a_world_that_raises_ends_its_own_episode_and_no_other_wherever_it_is(where):
    expected = steps_of(in_place(Breaks, "simultaneous", 3))
    found = steps_of(behind(Breaks, "simultaneous", 3, **WHERE[where]))
    faults = {one[1]: one[6] for one in found if one[5]}
    broken, refused = ("ValueError", "world"), ("KeyError", "world")
    assert faults == {0: broken, 1: None, 2: broken, 3: None, 4: broken, 5: refused, 6: broken}
    check_same(found, expected, "all steps")


def test_worlds_that_reset_themselves_are_refused():
    with (
        stretto.make_vec(Drift, 2, backend="serial") as envs,
        pytest.raises(UsageError, match="autoreset_mode='NextStep'"),
    ):
        VectorWorlds(envs)
