"""Slots that are asked together give what each gives by itself, on every backend."""

from __future__ import annotations

import numpy as np
import pytest

import stretto
from stretto.envs.arrays import WINDOW, shares, step_some, stepped_by
from tests.worlds import Drift, makes


def test_a_signal_says_which_worlds_are_meant():
    for indices in ([0], [WINDOW - 1], [0, 3, 31], [WINDOW, WINDOW + 5], list(range(7 * WINDOW, 8 * WINDOW))):
        assert stepped_by(step_some(indices, 0)) == stepped_by(step_some(indices, 1)) == indices


def test_rows_of_one_place_are_shared_out_so_many_at_a_time():
    assert shares("abaab", 2) == [[0, 2], [3], [1, 4]]
    assert shares("aab", 1) == [[0], [1], [2]]


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
@pytest.mark.parametrize("transport", ["shared", "message"])
def test_slots_that_are_asked_together_step_as_if_alone(backend, transport):
    if transport == "message" and backend != "process":
        pytest.skip("only processes have messages alone")
    found = []
    for together in (1, 3):
        with stretto.make_vec(
            makes(Drift, 4), 7, backend=backend, workers=2 if backend != "serial" else None, transport=transport
        ) as envs:
            envs.reset(seed=5)
            engine, rows = envs.engine, []
            for step in range(12):
                actions = np.arange(7) % 4
                with engine.alone:
                    engine.send([actions], list(range(7)), together)
                    slots, infos = engine.recv(None, ordered=False)
                observations, *numbers = engine.state.gather(range(7))
                rows.append(
                    (step, sorted(slots), observations.tolist(), [one.tolist() for one in numbers], sorted(infos))
                )
        found.append(rows)
    assert found[0] == found[1]
