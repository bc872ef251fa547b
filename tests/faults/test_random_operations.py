"""Anything may be done to a vector environment in any order while its workers are killed: nothing differs."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import stretto
from stretto.testing import difference
from tests.faults.killing import Killer
from tests.faults.worlds import Adjustable, GlobalDriftWithKnobs, OwnGeneratorWithKnobs

pytestmark = pytest.mark.timeout(60)

SLOTS = 5
OPERATIONS = 28


def task(slot: int, episode: int, stream: np.random.Generator) -> float:
    return slot + 10 * episode + stream.random()


WORLDS = {
    "own np_random": partial(Adjustable, 7),
    "own generator": OwnGeneratorWithKnobs,
    "global generators": GlobalDriftWithKnobs,
}


def operations(seed: int, disabled: bool) -> list[Callable[[Any], Any]]:
    """Return functions of a vector environment, drawn at random."""
    draw = random.Random(seed)
    chosen: list[Callable[[Any], Any]] = [lambda envs: envs.reset(seed=seed)]
    for _ in range(OPERATIONS):
        kind = draw.choices(
            ["step", "some", "call", "set", "get", "reset", "seeded", "mask"], [30, 15, 3, 3, 3, 1, 1, 3]
        )[0]
        actions = np.array([draw.randrange(4) for _ in range(SLOTS)])
        match kind:
            case "step":
                chosen += [partial(_step, actions, disabled)] * draw.randrange(1, 4)
            case "some":
                ids = draw.sample(range(SLOTS), draw.randrange(1, SLOTS + 1))
                chosen.append(partial(_some, actions, ids, disabled))
            case "call":
                chosen.append(partial(_call, draw.uniform(0.5, 2)))
            case "set":
                chosen.append(partial(_set, [draw.random() for _ in range(SLOTS)]))
            case "get":
                chosen.append(lambda envs: (envs.get_attr("pace"), envs.map(lambda env: env.unwrapped.steps)))
            case "reset":
                chosen.append(lambda envs: envs.reset())
            case "seeded":
                chosen.append(partial(_seed, draw.randrange(1000)))
            case _:
                mask = np.array([draw.random() < 0.5 for _ in range(SLOTS - 1)] + [True])
                chosen.append(partial(_mask, mask))
    return chosen


def _step(actions: Any, disabled: bool, envs: Any) -> Any:
    result = envs.step(actions)
    over = result.terminations | result.truncations
    return (result, envs.reset(options={"reset_mask": over})) if disabled and over.any() else result


def _some(actions: Any, ids: list[int], disabled: bool, envs: Any) -> Any:
    envs.send(actions[: len(ids)], ids)
    result = envs.recv(ordered=True)
    over = np.zeros(SLOTS, bool)
    over[result.ids] = result.terminations | result.truncations
    return (result, envs.reset(options={"reset_mask": over})) if disabled and over.any() else result


def _call(factor: float, envs: Any) -> Any:
    return envs.call("scale", factor)


def _set(values: list[float], envs: Any) -> None:
    envs.set_attr("pace", values)


def _seed(seed: int, envs: Any) -> Any:
    return envs.reset(seed=seed)


def _mask(mask: Any, envs: Any) -> Any:
    return envs.reset(options={"reset_mask": mask})


def check(seed: int, world: Any, mode: str, transport: str, **options: Any) -> int:
    """Check that operations drawn from `seed` give the same on killed workers and in the caller; return the kills."""
    todo = operations(seed, mode == "Disabled")
    with stretto.make_vec(world, SLOTS, backend="serial", autoreset_mode=mode, **options) as envs:
        expected = [one(envs) for one in todo]
    layout = {"backend": "process", "workers": 2, "transport": transport, "max_restarts": 100}
    isolate = bool(seed % 2)
    with (
        stretto.make_vec(world, SLOTS, autoreset_mode=mode, isolate=isolate, **layout, **options) as envs,
        Killer(envs, seed) as killer,
    ):
        for number, (one, wanted) in enumerate(zip(todo, expected, strict=True)):
            if number % 4 == 0:
                killer.strike_soon()
            found = difference(one(envs), wanted)
            assert found is None, f"operation {number}, {one}: {found}"
        assert envs.statistics().truncations == 0
    return killer.kills


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_whatever_is_done_in_whatever_order_gives_the_same(world, mode):
    for seed, transport in ((1, "shared"), (2, "message")):
        check(seed, world, mode, transport, tasks=task if seed == 2 else None)


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_with_episode_seeds_too(mode):
    check(3, WORLDS["own np_random"], mode, "shared", episode_seeds=True, tasks=task)
