"""Anything may be done to a vector environment in any order while its workers are lost: nothing differs."""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

import stretto
from stretto.envs.infos import info_of
from stretto.testing import difference
from stretto.workers import handing_out
from tests.faults.killing import Killer
from tests.faults.worlds import Adjustable, GlobalDriftWithKnobs, OwnGeneratorWithKnobs
from tests.keeping import Keeps
from tests.workers.fake import AFTER, BEFORE, UNCOUNTED, UNSENT, Death, Delay, Hang, Script, make_fake_vec

pytestmark = pytest.mark.timeout(60)

SLOTS = 5
LIMITS = {"step_timeout": 5.0, "reset_timeout": 5.0, "start_timeout": 5.0}

Rows = dict[int, Any]
"""What an operation gave for each slot that it was about."""

Operation = Callable[[Any], Rows]


def task(slot: int, episode: int, stream: np.random.Generator) -> float:
    return slot + 10 * episode + stream.random()


WORLDS = {
    "own np_random": partial(Adjustable, 7),
    "own generator": OwnGeneratorWithKnobs,
    "global generators": GlobalDriftWithKnobs,
}
MODES = ["NextStep", "SameStep", "Disabled"]


# ---- operations ----


def operations(draw: random.Random, count: int, disabled: bool) -> list[Operation]:
    """Return functions of a vector environment, drawn at random; the first is a reset with a seed."""
    chosen: list[Operation] = [partial(_reset, draw.randrange(1000), None)]
    for _ in range(count):
        kind = draw.choices(
            ["step", "some", "parts", "call", "set", "get", "reset", "seeded", "mask"], [30, 12, 5, 3, 3, 3, 1, 1, 3]
        )
        actions = np.array([draw.randrange(4) for _ in range(SLOTS)])
        match kind[0]:
            case "step":
                chosen += [partial(_step, actions, disabled)] * draw.randrange(1, 4)
            case "some":
                ids = draw.sample(range(SLOTS), draw.randrange(1, SLOTS + 1))
                chosen.append(partial(_some, actions, ids, disabled))
            case "parts":
                chosen.append(partial(_parts, actions, draw.randrange(1, SLOTS), disabled))
            case "call":
                chosen.append(partial(_call, draw.uniform(0.5, 2)))
            case "set":
                chosen.append(partial(_set, [draw.random() for _ in range(SLOTS)]))
            case "get":
                chosen.append(_get)
            case "reset":
                chosen.append(partial(_reset, None, None))
            case "seeded":
                chosen.append(partial(_reset, draw.randrange(1000), None))
            case _:
                mask = np.array([draw.random() < 0.5 for _ in range(SLOTS - 1)] + [True])
                chosen.append(partial(_reset, None, mask))
    return chosen


def _step(actions: Any, disabled: bool, envs: Any) -> Rows:
    return _begin_anew(envs, _rows(envs.step(actions), range(SLOTS)), disabled)


def _some(actions: Any, ids: list[int], disabled: bool, envs: Any) -> Rows:
    envs.send(actions[: len(ids)], ids)
    result = envs.recv(ordered=True)
    return _begin_anew(envs, _rows(result, result.ids.tolist()), disabled)


def _parts(actions: Any, most: int, disabled: bool, envs: Any) -> Rows:
    """Receive whatever is ready first, at most so many at once."""
    envs.send(actions)
    rows: Rows = {}
    while len(rows) < SLOTS:
        result = envs.recv(ready=min(most, SLOTS - len(rows)))
        rows.update(_rows(result, result.ids.tolist()))
    return _begin_anew(envs, rows, disabled)


def _rows(result: Any, ids: Any) -> Rows:
    return {slot: (*(part[i] for part in result[:4]), info_of(result.infos, i)) for i, slot in enumerate(ids)}


def _begin_anew(envs: Any, rows: Rows, disabled: bool) -> Rows:
    """Reset the slots whose episode is over, where nobody else does."""
    over = np.array([slot in rows and bool(rows[slot][2] or rows[slot][3]) for slot in range(SLOTS)])
    if disabled and over.any():
        for slot, row in _reset(None, over, envs).items():
            rows[slot] = (rows[slot], row)
    return rows


def _reset(seed: int | None, mask: Any, envs: Any) -> Rows:
    observations, infos = envs.reset(seed=seed, options=None if mask is None else {"reset_mask": mask})
    return {slot: (observations[slot], info_of(infos, slot)) for slot in range(SLOTS) if mask is None or mask[slot]}


def _call(factor: float, envs: Any) -> Rows:
    return dict(enumerate(envs.call("scale", factor)))


def _set(values: list[float], envs: Any) -> Rows:
    envs.set_attr("pace", values)
    return {}


def _get(envs: Any) -> Rows:
    return dict(enumerate(zip(envs.get_attr("pace"), envs.map(lambda env: env.unwrapped.steps), strict=True)))


def _is_seeded(one: Operation) -> bool:
    return one.func is _reset and one.args[0] is not None if isinstance(one, partial) else False


def serial_run(world: Any, todo: list[Operation], **options: Any) -> list[Rows]:
    with stretto.make_vec(world, SLOTS, backend="serial", **options) as envs:
        return [one(envs) for one in todo]


def check_rows(found: Rows, wanted: Rows, slots: set[int], told: str) -> None:
    """Check that an operation gave these slots what it should."""
    for slot in slots & wanted.keys():
        parts = difference(found[slot], wanted[slot])
        assert parts is None, f"{told}, slot {slot}: {parts}"


# ---- on workers that only pretend to be lost ----


whens = st.sampled_from([BEFORE, 1, 2, 3, UNSENT, UNCOUNTED, AFTER])
places = {"nth": st.integers(1, 40), "seat": st.integers(0, 1)}
deaths = st.lists(st.builds(Death, when=whens, **places), min_size=1, max_size=6)
delays = st.lists(st.builds(Delay, seconds=st.floats(0.1, 4.0), **places), max_size=3)
hangs = st.lists(st.builds(Hang, when=whens, **places), max_size=1)  # one that hangs again is told
faults = st.builds(lambda *parts: [one for part in parts for one in part], hangs, deaths, delays)
options = st.fixed_dictionaries(
    {
        "autoreset_mode": st.sampled_from(MODES),
        "tasks": st.sampled_from([None, task]),
        "episode_seeds": st.booleans(),
    }
)
layouts = st.fixed_dictionaries({"shares_memory": st.booleans(), "isolate": st.booleans()})
todos = st.builds(partial, st.just(operations), st.randoms(use_true_random=False), st.integers(3, 12))
any_world = st.sampled_from(list(WORLDS))
quickly = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # To find a simpler failure takes longer than a test may; to explain it, it is traced, and then there are no limits.
    phases=[Phase.reuse, Phase.generate],
    print_blob=True,
)


class Watched:
    """Does operations on workers that follow a script, and says which slots are known to be as if nothing had happened.

    Those are all, until a worker is replaced whose slots cannot be restored; and all again after a reset with a seed.
    """

    def __init__(self, envs: Any, restores: bool) -> None:
        self.envs, self.restores = envs, restores
        self.seats = envs._engine.supervisor.seats
        self.intact = set(range(SLOTS))
        self.replaced: set[int] = set()
        self.truncated: list[int] = []

    def do(self, one: Operation) -> Rows:
        """Do one thing, and note who is lost meanwhile."""
        before = [seat.worker for seat in self.seats]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            rows = one(self.envs)
        lost = [seat for seat, old in zip(self.seats, before, strict=True) if seat.worker is not old]
        changed = {slot for seat in lost for slot in seat.factory.slots}
        self.replaced |= changed
        for warning in warned:
            # A share of the caller's that could not be moved out stays where it is, which changes nothing.
            if not issubclass(warning.category, stretto.FewerWorkers):
                assert issubclass(warning.category, stretto.SlotTruncated), warning
                self.truncated.append(int(re.search(r"slot (\d+) was", str(warning.message))[1]))
                assert self.truncated[-1] in self.replaced
        if self.restores:  # also the slots of a worker that was lost after it had answered
            return rows
        if _is_seeded(one):
            self.intact = {s for seat in self.seats if seat.worker is not None for s in seat.factory.slots}
        else:
            self.intact -= changed
        return rows


def check_on_fakes(
    world: str,
    todo: Any,
    faults: list[Any],
    options: dict[str, Any],
    layout: dict[str, Any],
    keeps: Keeps | None = None,
    **rule: Any,
) -> Watched:
    """Check that slots which are known to be as if nothing had happened give what the serial backend gives.

    Somebody may keep what operations give, and write into it.
    """
    todo = todo(options["autoreset_mode"] == "Disabled")
    expected = serial_run(WORLDS[world], todo, **options)
    script = Script(*faults)
    envs = make_fake_vec(WORLDS[world], SLOTS, script, max_restarts=1000, **layout, **options, **rule, **LIMITS)
    watched = Watched(envs, restores=not rule)
    with _closing(envs, script):
        for number, (one, wanted) in enumerate(zip(todo, expected, strict=True)):
            rows = watched.do(one)
            check_rows(rows, wanted, watched.intact, f"operation {number}, {one}")
            if keeps is not None:
                keeps.take(rows)
            del rows
        assert envs.statistics().truncations == len(watched.truncated)
    event(f"{len(script.struck)} faults struck")
    return watched


@contextlib.contextmanager
def _closing(envs: Any, script: Script) -> Iterator[None]:
    """Close what hangs, if it does, while it is closed."""
    hung = None
    try:
        yield
    finally:
        try:
            envs.close()
        except stretto.WorldHung as error:
            hung = error
    if hung is not None:
        assert hung.place.doing == "closing"
        assert any(isinstance(fault, Hang) for fault in script.struck)


@quickly
@given(any_world, todos, faults, options, layouts)
def test_whatever_is_done_and_whoever_is_lost_it_gives_the_same(world, todo, faults, options, layout):
    watched = check_on_fakes(world, todo, faults, options, layout)
    assert watched.intact == set(range(SLOTS))
    assert watched.truncated == []


@quickly
@given(any_world, todos, faults, options, layouts, st.builds(Keeps, st.integers(0, 9), st.integers(0, 12)))
def test_whatever_somebody_keeps_and_writes_into_meanwhile_it_gives_the_same(
    world, todo, faults, options, layout, keeps
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handing_out, "HANDED_OUT_BYTES", 1)
        patch.setattr(handing_out, "_WRITTEN_SHARE", 1e9)
        watched = check_on_fakes(world, todo, faults, options, layout, keeps)
    assert watched.truncated == []
    keeps.check()


@quickly
@given(any_world, todos, faults, options, layouts, st.sampled_from([{"on_crash": "truncate"}, {"replay_limit": 4}]))
def test_what_cannot_be_restored_is_truncated_with_a_warning_and_the_rest_gives_the_same(
    world, todo, faults, options, layout, rule
):
    check_on_fakes(world, todo, faults, options, layout, **rule)


# ---- on processes that are killed ----


@pytest.mark.usefixtures("workers_without_torch")  # which each new launcher would import again
@pytest.mark.parametrize(
    ("seed", "world", "transport", "options"),
    [
        (1, "global generators", "shared", {"autoreset_mode": "SameStep"}),
        (2, "own generator", "message", {"autoreset_mode": "Disabled", "tasks": task}),
        (3, "own np_random", "shared", {"autoreset_mode": "NextStep", "tasks": task, "episode_seeds": True}),
    ],
)
def test_processes_may_be_killed_meanwhile(seed, world, transport, options):
    todo = operations(random.Random(seed), 28, options["autoreset_mode"] == "Disabled")
    expected = serial_run(WORLDS[world], todo, **options)
    layout = {
        "backend": "process",
        "workers": 2,
        "transport": transport,
        "max_restarts": 100,
        "isolate": bool(seed % 2),
    }
    with stretto.make_vec(WORLDS[world], SLOTS, **layout, **options) as envs, Killer(envs, seed) as killer:
        for number, (one, wanted) in enumerate(zip(todo, expected, strict=True)):
            if number % 4 == 0:
                killer.strike_soon()
            check_rows(one(envs), wanted, set(range(SLOTS)), f"operation {number}, {one}")
        assert envs.statistics().truncations == 0
