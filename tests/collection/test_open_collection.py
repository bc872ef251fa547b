"""Collections that stay open: the rollouts of one call, some at a time, with the same worlds and workers."""

from __future__ import annotations

import numpy as np
import pytest

import stretto
from stretto.collection import block_way
from stretto.collection.block_way import BlockWay
from stretto.collection.collector import Queue, Trials
from stretto.collection.ready_first import ReadyFirstWorlds
from stretto.collection.worlds import BlockWorlds
from stretto.errors import ClosedError, PolicyFailed
from tests.collection.test_collector import Chance, Remembers
from tests.worlds import Drift, makes


def whole_of(parts):
    return stretto.collection.rollouts.Rollouts([rollout for part in parts for rollout in part])


LAYOUTS = [
    {"wait": "whole", "backend": "serial"},
    {"wait": "whole", "backend": "process", "workers": 2},
    {"wait": "lockstep", "num_envs": 3},
    {"wait": "ready-first", "num_envs": 4, "backend": "process", "workers": 2},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: f"{one['wait']}-{one.get('backend')}")
@pytest.mark.parametrize("policy", [Chance, Remembers])
def test_what_is_collected_some_at_a_time_is_what_is_collected_at_once(layout, policy):
    wanted = stretto.collect(makes(Drift, 6), policy, 23, episodes_per_task=2, **layout)
    with stretto.open_collection(makes(Drift, 6), policy, episodes_per_task=2, **layout) as collection:
        found = [collection.collect(count) for count in (1, 10, 2, 10)]
    assert [len(part) for part in found] == [1, 10, 2, 10]
    assert whole_of(found).digest() == wanted.digest()


def test_a_curriculum_goes_on_from_one_call_to_the_next():
    seen = []

    def harder(rollouts, stream):
        seen.append(len(rollouts))
        return len(rollouts)

    tasks = stretto.Curriculum(harder, every=4)
    with stretto.open_collection(makes(Drift, 6), Chance, tasks=tasks, wait="whole", backend="serial") as collection:
        tasks_of = [rollout.task for count in (3, 5, 4) for rollout in collection.collect(count)]
    assert tasks_of == [0] * 4 + [4] * 4 + [8] * 4


def test_an_environment_of_the_user_stays_open():
    with stretto.make_vec(makes(Drift, 6), 3, backend="serial") as envs:
        wanted = stretto.collect(envs, Chance, 8)
        with stretto.open_collection(envs, Chance) as collection:
            found = [collection.collect(3), collection.collect(5)]
        assert whole_of(found).digest() == wanted.digest()
        envs.reset(seed=0)


@pytest.mark.parametrize(
    ("rates", "used"), [((1, 2), ["ReadyFirstWorlds"]), ((2, 1), ["ReadyFirstWorlds", "BlockWorlds"])]
)
@pytest.mark.parametrize("slots", [5, 20])
def test_auto_tries_both_ways_to_wait_and_keeps_the_faster_with_the_same_rollouts(monkeypatch, rates, used, slots):
    measured, changed = iter(rates), []

    def rate(self):
        steps = self._stage.steps
        while self._stage.steps == steps:
            yield False
        return next(measured)

    monkeypatch.setattr(BlockWay, "_rate", rate)
    monkeypatch.setattr(block_way, "LEAST_SECONDS", 0.0)
    for way in (BlockWorlds, ReadyFirstWorlds):

        def take_over(self, worlds, old=way.take_over, name=way.__name__):
            if type(self).__name__ == name:
                changed.append(name)
            old(self, worlds)

        monkeypatch.setattr(way, "take_over", take_over)
    layout = {"num_envs": slots, "backend": "process", "workers": 2, "episodes_per_task": 2, "act_rows": 8}
    found = stretto.collect(makes(Drift, 6), Remembers, 60, **layout)
    assert changed == used
    assert found.digest() == stretto.collect(makes(Drift, 6), Remembers, 60, wait="lockstep", **layout).digest()


def test_a_slot_keeps_to_its_row_of_a_call_while_trials_of_that_row_are_near():
    queue = Queue(40, Trials(0))
    queue.rows = 4
    assert [queue.next(slot).index for slot in range(4)] == [0, 1, 2, 3]
    assert [queue.next(slot).index for slot in (2, 2, 2)] == [6, 10, 4]
    assert sorted(queue.next(0).index for _ in range(33)) == sorted({*range(40)} - {0, 1, 2, 3, 6, 10, 4})
    assert queue.next(0) is None


def test_workers_stay_between_calls():
    layout = {"wait": "whole", "backend": "process", "workers": 2}
    with stretto.open_collection(Knows, lambda _: 0, check_reuse=False, **layout) as collection:
        pids = [{int(one.observations[0, 0]) for one in collection.collect(20)} for _ in range(3)]
    assert len(pids[0] | pids[1] | pids[2]) <= 2


class Knows(Drift):
    """Observes the process that it is in."""

    def see(self):
        import os

        return np.full(3, os.getpid(), np.float32)


def test_a_collection_that_was_cut_short_is_closed():
    def choose(observation):
        raise ValueError("no idea")

    with stretto.open_collection(makes(Drift, 6), choose) as collection:
        with pytest.raises(PolicyFailed):
            collection.collect(2)
        with pytest.raises(ClosedError, match="open a new one"):
            collection.collect(2)
