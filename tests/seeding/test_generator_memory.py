"""States of generators are read in their memory where that can be done, and asked for elsewhere: the numbers are the same."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from stretto.seeding import PrivateGenerators, SeedTree, generator_memory, watching_many
from stretto.seeding.generator_memory import Twister, read_numpy, read_random, write_numpy, write_random


@pytest.fixture(params=["seen", "asked"])
def where(request, monkeypatch):
    """How states are found: in memory, or as on a Python that does not show it."""
    if request.param == "asked":
        for name in ("_of_random", "_of_seeder", "_normal"):
            monkeypatch.setattr(generator_memory, name, None)
        monkeypatch.setattr(Twister, "memory", property(lambda _: None, lambda *_: None), raising=False)
    else:
        assert generator_memory.can_be_seen()
    return request.param


def mixed() -> tuple[Any, ...]:
    """Draw numbers of all kinds; an odd number of normal ones leaves one over."""
    return (
        random.random(),
        random.gauss(0, 1),
        random.randrange(1000),
        float(np.random.rand()),
        np.random.randn(3).tolist(),
        int(np.random.randint(1000)),
    )


@pytest.mark.parametrize("draws", [0, 1, 3, 700])
def test_what_is_written_back_goes_on_where_it_was_read(where, draws):
    for _ in range(draws):
        mixed()
    states = read_random(), read_numpy()
    inner = states[1][0].state
    first = [mixed() for _ in range(400)]
    write_random(states[0])
    states[1][0].state = inner
    write_numpy(states[1])
    assert [mixed() for _ in range(400)] == first


def test_a_stream_is_the_same_however_states_are_found(where, monkeypatch):
    found = [PrivateGenerators(SeedTree(3), probation=4).run(mixed) for _ in range(2)]
    monkeypatch.undo()
    assert found == [PrivateGenerators(SeedTree(3), probation=4).run(mixed)] * 2


def draw_late(guard: PrivateGenerators, use: str) -> list[Any]:
    """Call something three times that draws in the second call."""
    found = []
    for number in range(3):
        draws = mixed if number == 1 else tuple
        found.append(guard.call(lambda _, draws=draws: draws(), None) if use == "call" else guard.run(draws))
    return found


def test_worlds_that_are_watched_together_draw_what_they_would_draw_alone(where):
    alone = [draw_late(PrivateGenerators(SeedTree(seed), probation=16), "run") for seed in range(5)]
    before = read_random()
    together = watching_many(
        lambda: [draw_late(PrivateGenerators(SeedTree(seed), probation=16), "call") for seed in range(5)]
    )
    assert together == alone
    assert read_random() == before


def test_one_that_raises_while_many_are_watched_has_drawn_what_it_has_drawn(where):
    def fail(_: Any) -> None:
        np.random.rand(2)
        raise ValueError("on purpose")

    guards = [PrivateGenerators(SeedTree(1), probation=16) for _ in range(2)]
    with pytest.raises(ValueError, match="on purpose"):
        watching_many(guards[0].call, fail, None)
    guards[1].run(np.random.rand, 2)
    assert guards[0].run(mixed) == guards[1].run(mixed)
    assert guards[0].drawn >= {"numpy"}


@pytest.mark.parametrize("many", [False, True])
def test_a_world_that_keeps_the_global_generator_has_it_for_itself(where, many):
    def keep(_: Any = None) -> np.random.Generator:
        return np.random.Generator(np.random.get_bit_generator())

    def kept_by(seed: int) -> np.random.Generator:
        guard = PrivateGenerators(SeedTree(seed), probation=16)
        return guard.call(keep, None) if many else guard.run(keep)

    first, second = watching_many(lambda: (kept_by(1), kept_by(2)))
    numbers = first.random(5).tolist(), second.random(5).tolist()
    assert numbers[0] != numbers[1]
    assert kept_by(1).random(5).tolist() == numbers[0]


def seed_random() -> Any:
    random.seed(4)


def seed_numpy() -> Any:
    np.random.seed(4)


@pytest.mark.parametrize(
    ("seed", "draw", "name"), [(seed_random, random.random, "random"), (seed_numpy, np.random.rand, "numpy")]
)
def test_a_world_that_only_seeds_a_generator_while_many_are_watched_draws_from_there(where, seed, draw, name):
    guard = PrivateGenerators(SeedTree(1), probation=16)
    watching_many(guard.call, lambda _: seed(), None)
    assert guard.drawn == {name}
    seed()
    assert guard.run(draw) == draw()
