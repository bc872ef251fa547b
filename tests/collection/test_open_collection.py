"""Collections that stay open: the rollouts of one call, some at a time, with the same worlds and workers."""

from __future__ import annotations

import numpy as np
import pytest

import stretto
from stretto.collection import block_way
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


def test_a_policy_that_takes_long_is_waited_for_ready_first_with_the_same_rollouts(monkeypatch):
    monkeypatch.setattr(block_way, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(block_way, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(block_way, "POLICY_SHARE", 0.0)
    changed = []
    monkeypatch.setattr(
        block_way.ReadyFirstWorlds,
        "take_over",
        lambda self, worlds, old=block_way.ReadyFirstWorlds.take_over: (changed.append(1), old(self, worlds)),
    )
    layout = {"num_envs": 5, "backend": "process", "workers": 2, "episodes_per_task": 2}
    found = stretto.collect(makes(Drift, 6), Remembers, 40, **layout)
    assert changed == [1]
    assert found.digest() == stretto.collect(makes(Drift, 6), Remembers, 40, wait="lockstep", **layout).digest()


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
