"""Steps of worlds that the caller has all itself: what they get is what they would get anywhere else."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.envs.slot import RECORD_EVERY, Slot
from tests.backends import every_backend
from tests.worlds import CountTo, makes


class Told(CountTo):
    """Keeps what it was told to do, and of which type that was."""

    def __init__(self, first: int = 0, count: int = 3) -> None:
        super().__init__(1000)
        self.action_space = spaces.Discrete(count, start=first)
        self.told: list[str] = []

    def move(self, action):
        self.told.append(repr(action))
        return super().move(action)


@every_backend
@pytest.mark.parametrize(("first", "count"), [(0, 3), (-1, 3), (0, 5000)])
def test_a_choice_is_one_of_numpys_numbers_however_choices_were_given(first, count, options):
    with stretto.make_vec(makes(Told, first, count), 3, **options) as envs:
        envs.reset(seed=0)
        for kind in (np.array, list, partial(np.array, dtype=np.int32), np.array):
            envs.step(kind([first, first + 2, first + 1]))
        told = [[repr(np.int64(first + more))] * 4 for more in (0, 2, 1)]
        assert list(envs.get_attr("told")) == told


@pytest.mark.parametrize("wrong", [-1, 3, 1 << 40])
@every_backend
def test_a_choice_that_is_none_is_refused_also_after_many_that_were_right(wrong, options):
    with stretto.make_vec(Told, 3, **options) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            envs.step(np.array([0, 1, 2]))
        with pytest.raises(stretto.InvalidAction, match=f"slot 1 must be from 0 to 2, got {wrong}"):
            envs.step(np.array([0, wrong, 2]))
        envs.step(np.array([2, 1, 0]))
        assert [len(told) for told in envs.get_attr("told")] == [4, 4, 4]


@every_backend
def test_too_few_choices_are_refused_also_after_batches_of_some_slots(options):
    with stretto.make_vec(Told, 3, **options) as envs:
        envs.reset(seed=0)
        envs.send(np.array([1, 2]), [0, 1])
        envs.recv()
        with pytest.raises(stretto.InvalidAction, match="must have shape"):
            envs.step(np.array([1, 2]))


def test_the_serial_backend_records_no_point_that_nobody_goes_back_to(monkeypatch):
    monkeypatch.setattr(Slot, "_record", lambda *_, **__: pytest.fail("a point was recorded"))
    with stretto.make_vec(makes(CountTo, 7), 2, backend="serial") as envs:
        envs.reset()
        for _ in range(RECORD_EVERY + 10):
            envs.step(np.zeros(2, int))
        envs.reset()
