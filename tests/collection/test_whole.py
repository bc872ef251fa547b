"""Where whole rollouts are played, and by how many workers."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from stretto import collect
from stretto.budget import CpuBudget
from stretto.collection import whole
from stretto.collection.whole import MOST_WAITING_WORKERS, Pace
from stretto.collection.whole_options import whole_options
from stretto.errors import StrettoError
from tests.collection.test_collector import collected
from tests.evaluation.test_native_threads import native_threads
from tests.worlds import Drift, World, makes


@pytest.mark.parametrize(
    ("shares", "cores", "workers"),
    [
        ([1.0], 2, 2),
        ([0.3, 0.9], 2, 2),
        ([0.5], 2, 4),
        ([0.25], 2, 8),
        ([0.1, 0.2], 1, 5),
        ([0.0], 2, MOST_WAITING_WORKERS),
    ],
)
def test_there_is_a_worker_a_core_and_more_where_they_mostly_wait(shares, cores, workers):
    pace = Pace()
    for share in shares:
        pace.add(2.0, 2.0 * share)
    assert pace.workers(cores) == workers


def test_what_the_rest_takes_follows_from_what_was_played():
    pace = Pace()
    pace.add(1.0, 1.0)
    pace.add(3.0, 1.0)
    assert pace.seconds_for(10) == 20.0


class Waits(World):
    """Observes the process that it is in, and waits in every step."""

    def see(self):
        return np.array([os.getpid(), 0.0])

    def move(self, action):
        time.sleep(0.01)
        return self.see(), 0.0, self.steps == 3, False, {}


@pytest.mark.parametrize("cores", [1, 2])
def test_worlds_that_wait_get_more_workers_than_there_are_cores(cores, monkeypatch):
    monkeypatch.setattr(whole, "WORTH_STARTING_SECONDS", 0.1)
    found = collect(Waits, lambda _: 0, 60, budget=CpuBudget(cores), check_reuse=False)
    pids = {int(one.observations[0, 0]) for one in found}
    assert os.getpid() in pids
    assert len(pids) > 1 + cores


class TellsThreads(World):
    """Observes the process that it is in, and how many native threads this has."""

    def see(self):
        return np.array([os.getpid(), native_threads()])

    def move(self, action):
        return self.see(), float(action), self.steps == 2, False, {}


def tells_threads(_):
    return native_threads()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "how", [{"backend": "serial"}, {"backend": "process"}, {"backend": "serial", "wait": "lockstep"}]
)
def test_worlds_and_policies_compute_with_as_many_native_threads_as_were_asked_for(how, threads):
    with threadpool_limits(2, user_api="blas"):
        found = collect(TellsThreads, tells_threads, 3, native_threads=threads, check_reuse=False, **how)
        assert native_threads() == 2  # what the caller has is given back
    assert {int(one.observations[1, 1]) for one in found} == {threads}
    assert {int(action) for one in found for action in one.actions} == {threads}


def test_a_collector_asks_policies_with_one_native_thread():
    with threadpool_limits(2, user_api="blas"):
        found = collected(TellsThreads, 2, tells_threads, 3, backend="serial")
    assert {int(action) for one in found for action in one.actions} == {1}


def test_threads_are_used_if_they_are_asked_for():
    found = collect(TellsThreads, lambda _: 0, 3, backend="thread", num_envs=2, check_reuse=False)
    assert {int(one.observations[0, 0]) for one in found} == {os.getpid()}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"worker": 2}, r"collect has no argument 'worker'; .*did you mean workers"),
        ({"copy": False}, "collect has no argument 'copy'"),
        (
            {"wait": "whole", "backend": "thread"},
            "wait='whole' plays whole rollouts in processes, got backend='thread';",
        ),
        (
            {"wait": "whole", "vectorization_mode": "sync"},
            "in processes, got vectorization_mode='sync'; leave that out",
        ),
        ({"wait": "whole", "on_crash": "truncate"}, "in processes, got on_crash='truncate'; leave that out"),
        ({"native_threads": 0}, "native_threads must be at least 1, got 0"),
        ({"backend": "proces"}, "backend must be one of 'auto', 'serial', 'thread', 'process', 'ray', got 'proces'"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"step_timeout": -1}, "step_timeout must be a number of more than 0, or None for no limit, got -1"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(options, sentence):
    with pytest.raises(StrettoError, match=sentence):
        collect(makes(Drift, 3), "random", 2, **options)


def test_a_rollout_has_the_longest_of_the_limits_that_were_given():
    assert whole_options({})[0].limit_seconds == 60
    assert whole_options({"step_timeout": 5})[0].limit_seconds == 5
    assert whole_options({"step_timeout": 5, "reset_timeout": 300.0})[0].limit_seconds == 300
    assert whole_options({"step_timeout": 5, "start_timeout": None})[0].limit_seconds is None
    assert whole_options({"transport": "shared", "replay_limit": 5})[1] == ""
