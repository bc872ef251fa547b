"""A worker collects while it waits: what is young at once, all of it only once much has stayed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

import stretto
from stretto.workers.garbage import FEWEST, LEAST_GROWTH, Garbage
from tests.worlds import CountTo


class Collector:
    """Stands for `gc`: so many objects were made, and what is looked at is written down."""

    def __init__(self, built: int) -> None:
        self.made, self.garbage, self.built, self.aside, self.looks = 0, 0, built, 0, []

    def collect(self, generation: int = 2) -> int:
        self.looks.append("all" if generation == 2 else "young")
        self.made = 0
        return self.garbage

    def freeze(self) -> None:
        self.aside = self.built

    def unfreeze(self) -> None:
        self.looks.append("unfreeze")
        self.aside = 0

    def get_count(self) -> tuple[int, int, int]:
        return self.made, 0, 0

    def get_freeze_count(self) -> int:
        return self.aside

    def set_threshold(self, *thresholds: int) -> None:
        self.thresholds = thresholds


@pytest.fixture
def collector() -> Collector:
    return Collector(built=10 * LEAST_GROWTH)


@pytest.fixture
def garbage(collector) -> Garbage:
    garbage = Garbage(collector)
    garbage.settle()
    collector.looks.clear()
    return garbage


def make(collector: Collector, garbage: Garbage, count: int, of_it_garbage: int = 0) -> list[str]:
    """Make objects, wait, and return what was looked at."""
    collector.made, collector.garbage = count, of_it_garbage
    collector.looks.clear()
    garbage.collect_some()
    return list(collector.looks)


def test_few_new_objects_are_not_worth_a_look(collector, garbage):
    assert make(collector, garbage, FEWEST - 1) == []


def test_new_objects_are_looked_at_while_the_worker_waits(collector, garbage):
    assert make(collector, garbage, FEWEST) == ["young"]


def test_what_was_garbage_does_not_count_as_growth(collector, garbage):
    looks = [make(collector, garbage, FEWEST, FEWEST) for _ in range(1_000)]
    assert all(one == ["young"] for one in looks)


def test_everything_but_what_was_built_is_looked_at_once_half_as_much_has_stayed(collector, garbage):
    looks = [make(collector, garbage, LEAST_GROWTH) for _ in range(6)]
    assert looks == [["young"]] * 5 + [["young", "all"]]


def test_growth_is_bounded_because_what_was_built_is_looked_at_in_the_end(collector, garbage):
    looks = [make(collector, garbage, LEAST_GROWTH) for _ in range(21)]
    assert looks[-1] == ["young", "unfreeze", "all"]
    assert not any("unfreeze" in one for one in looks[:-1])
    assert collector.aside == collector.built


class Cycles(CountTo):
    """Makes a cycle in every step, and counts those that are left."""

    def __init__(self) -> None:
        super().__init__(1 << 30)
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def step(self, action: Any) -> Any:
        for _ in range(100):
            one = _Node()
            one.me = one
            self.alive.add(one)
        return super().step(action)


class _Node:
    me: Any


def test_cycles_that_worlds_make_are_collected_and_never_in_the_middle_of_a_step():
    with stretto.make_vec(Cycles, 1, backend="process", isolate=True) as envs:
        envs.reset(seed=0)
        for _ in range(200):
            envs.step([0])
        assert envs.map(lambda env: len(env.alive))[0] < 2 * FEWEST
        assert envs.map(lambda env: gc.get_threshold()[0])[0] > 700
