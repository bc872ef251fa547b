"""Where whole rollouts are played, and by how many workers."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from stretto import collect
from stretto.budget import CpuBudget
from stretto.collection import whole
from stretto.collection.whole import MOST_WAITING_WORKERS, Pace
from tests.worlds import World


@pytest.mark.parametrize(
    ("shares", "cores", "workers"),
    [([1.0], 2, 2), ([0.3, 0.9], 2, 2), ([0.25], 2, 8), ([0.1, 0.2], 1, 5), ([0.0], 2, MOST_WAITING_WORKERS)],
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
    monkeypatch.setattr(whole, "TRIAL_SECONDS", 0.05)
    monkeypatch.setattr(whole, "WORTH_SECONDS", 0.1)
    found = collect(Waits, lambda _: 0, 60, budget=CpuBudget(cores), check_reuse=False)
    pids = {int(one.observations[0, 0]) for one in found}
    assert os.getpid() in pids
    assert len(pids) > 1 + cores
