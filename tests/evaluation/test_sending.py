"""What cannot be sent to another process is played here, with the same results, and the reason is told once."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

import stretto
from stretto.errors import RunsHere


def a_policy_that_holds_a_lock():
    lock = threading.Lock()

    def policy(observation):
        with lock:
            return int(abs(np.sum(observation["planes"] if isinstance(observation, dict) else observation))) % 5

    return policy


@pytest.mark.parametrize("options", [{"jobs": 2}, {"jobs": 0, "strategy": "processes"}])
def test_a_policy_that_cannot_be_sent_is_played_here(options):
    policy = a_policy_that_holds_a_lock()
    with pytest.warns(RunsHere, match="cannot pickle '_thread.lock' object") as told:
        report = stretto.evaluate("foundry_1", policy, episodes=2, steps=10, **options)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = stretto.evaluate("foundry_1", policy, episodes=2, steps=10, jobs=0, strategy="sequential")
    assert [record.rewards for record in report.records] == [record.rewards for record in plain.records]
    assert all(record.failure is None for record in report.records)
