"""The contracts that ship find what they are there to find, and say it in plain sentences."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from gymnasium import spaces

from stretto.testing import ContractBroken, check_env, check_same, difference
from stretto.workers.arena import Arena
from stretto.workers.inline import InlineWorker
from tests.worlds import Crowd, Drift, GlobalDrift, Raiser, Returns, TaskWorld, makes

ARRAY = np.array([[1.0, 2.0], [3.0, 4.0]])

DIFFERENT = {
    "a value": (1, 2, "the value is 1 in one and 2 in the other"),
    "a type": (1, 1.0, "is a int in one and a float in the other"),
    "a numpy type": (np.float32(1), np.float64(1), "float32 in one and a float64"),
    "an element": (ARRAY, ARRAY * [1, -1], r"\[0, 1\] is np.float64\(2.0\) in one and np.float64\(-2.0\)"),
    "the type of an array": (ARRAY, ARRAY.astype(np.float32), "type float64 in one and float32 in the other"),
    "a shape": (ARRAY, ARRAY[:1], r"shape \(2, 2\) in one and \(1, 2\)"),
    "the sign of zero": (np.array([0.0]), np.array([-0.0]), r"\[0\] is np.float64\(0.0\) in one"),
    "a key": ({"a": 1}, {"b": 1}, r"keys \['a'\] in one and \['b'\]"),
    "the order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, r"keys \['a', 'b'\] in one"),
    "deep inside": ({"a": [{"b": (1, 2)}]}, {"a": [{"b": (1, 3)}]}, r"\['a'\]\[0\]\['b'\]\[1\] is 2 in one"),
    "a list and a tuple": ([1], (1,), "the sequence"),
    "a length": ((1,), (1, 2), "the sequence"),
    "an object in an array": (np.array([None, "a"], object), np.array([None, "b"], object), r"\[1\] is 'a'"),
    "a graph": (
        spaces.GraphInstance(ARRAY, None, None),
        spaces.GraphInstance(-ARRAY, None, None),
        r"nodes\[0, 0\]",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_difference_is_found_and_its_place_is_said(case):
    one, other, words = DIFFERENT[case]
    with pytest.raises(ContractBroken, match=words):
        check_same(one, other, "the two")


@pytest.mark.parametrize(
    "value", [1, "a", np.nan, ARRAY, np.array([np.nan]), {"a": (1, [ARRAY])}, np.array([{"a": ARRAY}, None], object)]
)
def test_a_value_is_the_same_as_its_copy(value):
    import copy

    assert difference(value, copy.deepcopy(value)) is None


# ---- check_env ----


@pytest.mark.parametrize("world", [Drift, TaskWorld, Crowd, "CartPole-v1"], ids=str)
def test_a_world_that_repeats_itself_passes(world):
    held = check_env(world, steps=30)
    assert len(held) == 3


def test_one_that_draws_from_global_generators_passes_and_is_told_so():
    assert "global generators of numpy and random" in check_env(GlobalDrift, steps=30)[-1]


class HasARandomOfItsOwn(Drift):
    """Draws from a generator that no seed reaches."""

    def __init__(self):
        super().__init__()
        self.own = random.Random()

    def see(self):
        return super().see() + np.float32(self.own.random())


class RemembersTheLastEpisode(Drift):
    """Carries something over that a reset should have set."""

    def __init__(self):
        super().__init__(length=1000)
        self.tired = 0

    def move(self, action):
        self.tired += 1
        return super().move(action)

    def see(self):
        return super().see() + np.float32(self.tired)


class ReadsTheClock(Drift):
    def see(self):
        return super().see() + np.float32(time.monotonic_ns() % 2**24)


class DependsOnItsProcess(Drift):
    def see(self):
        import os

        return super().see() + np.float32(os.getpid() % 1000)


class CountsInItsClass(Drift):
    """Shares something with all instances of its process."""

    steps_of_all = 0

    def move(self, action):
        type(self).steps_of_all += 1
        return super().move(action)

    def see(self):
        return super().see() + np.float32(self.steps_of_all)


BROKEN = {
    "a generator of its own": (HasARandomOfItsOwn, r"Two instances with seed 0 .* part at the reset .*np_random"),
    "a memory": (RemembersTheLastEpisode, r"used before parts from a fresh one at the reset .*let reset\(\) set"),
    "the clock": (ReadsTheClock, "Two instances with seed 0"),
    "its process": (DependsOnItsProcess, "In a process of its own the world goes another way from the reset"),
    "its class": (CountsInItsClass, "Two instances with seed 0 .* part at"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.filterwarnings("ignore::stretto.SlotTruncated")
def test_a_world_that_does_not_repeat_itself_is_told_where_and_why(case):
    world, words = BROKEN[case]
    with pytest.raises(ContractBroken, match=words):
        check_env(world, steps=30)


@pytest.mark.filterwarnings("ignore::stretto.SlotTruncated")
def test_a_world_that_a_replay_cannot_restore_says_how_many_episodes_it_cost():
    with pytest.raises(ContractBroken, match=r"A run whose worker was killed parts.*episodes could not be replayed"):
        check_env(HasARandomOfItsOwn, steps=30)


class GoesWrong(Drift):
    """Does something at its fifth step."""

    def __init__(self, act):
        super().__init__(length=1000)
        self.act = act

    def move(self, action):
        if self.steps == 5:
            self.act()
        return super().move(action)


def crash():
    ctypes.string_at(0)


def hang():
    threading.Event().wait()


@pytest.mark.parametrize(
    ("act", "words"),
    [(crash, r"died while being checked: .*SIGSEGV"), (hang, "no answer for 0.5 s while being checked")],
    ids=["crash", "hang"],
)
def test_a_world_that_crashes_or_hangs_is_told_and_takes_nobody_with_it(act, words, monkeypatch):
    monkeypatch.setattr("stretto.testing.worlds._STEP_SECONDS", 0.5)
    with pytest.raises(ContractBroken, match=f"^It ended, or would not end, the process that it was in: .*{words}"):
        check_env(makes(GoesWrong, act), steps=10)


def test_what_a_world_raises_is_told_in_a_sentence():
    with pytest.raises(ContractBroken, match=r"It raised ValueError\(.the world's own words.\) while being checked"):
        check_env(makes(Raiser, 5), steps=10)


class NeedsATask(TaskWorld):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"task": options["task"]})


def test_a_world_that_needs_tasks_is_checked_with_them():
    with pytest.raises(ContractBroken, match=r"It raised TypeError.*if it needs options\['task'\], pass tasks="):
        check_env(NeedsATask, steps=10)
    assert len(check_env(NeedsATask, steps=10, tasks=[3, 4, 5])) == 3
    assert len(check_env(NeedsATask, steps=10, tasks=lambda slot, episode, stream: stream.random())) == 3


class Point:
    """Has no == of its own, and knows itself."""

    def __init__(self, x):
        self.x, self.itself = np.array([x]), self


class TellsOfAPoint(Drift):
    def __init__(self, alike=True):
        super().__init__()
        self.alike = alike

    def move(self, action):
        x = self.steps if self.alike else random.Random().random()
        return *super().move(action)[:4], {"point": Point(x)}


def test_infos_may_hold_objects_that_have_no_equality():
    assert len(check_env(TellsOfAPoint, steps=10)) == 3
    with pytest.raises(ContractBroken, match=r"\['point'\]\['x'\]\[0\] is"):
        check_env(makes(TellsOfAPoint, alike=False), steps=10)


@pytest.mark.parametrize(
    ("instead", "words"),
    [
        ({"observation": np.array([0, 11], np.float32)}, r"must be within the bounds of Box.*slot \d.*step 20"),
        ({"reward": float("nan")}, "a reward must be a number"),
    ],
    ids=["out of bounds", "no number"],
)
def test_what_is_out_of_bounds_is_told(instead, words):
    with pytest.raises(ContractBroken, match=f"^It returns what its spaces do not allow: .*{words}"):
        check_env(makes(Returns, 20, **instead), steps=30)


def test_a_world_that_walks_over_a_set_of_strings_is_told_of_the_hash_seed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SETS)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment, check=True)
    checked, by_luck, moved = run.stdout.splitlines()
    for said in (checked, by_luck, moved):
        assert "trings have other hashes in this process than in its workers" in said
        assert "start Python with PYTHONHASHSEED=0" in said
    told = {**environment, "PYTHONHASHSEED": "0"}
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, env=told, check=True)
    assert run.stdout.splitlines() == ["it repeats itself", "it repeats itself", "nothing was said"]


SETS = """
import os
import warnings

import gymnasium
import numpy as np

import stretto
from stretto.testing import check_env


class Sets(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 2000, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.see(), {}

    def see(self):
        return np.array([hash(word) % 1009 for word in ("one", "two", "three")], float)

    def step(self, action):
        return self.see(), 0.0, False, False, {}


class MatchesByLuck(Sets):
    "In the caller it sees what workers see, as if the caller's random hash seed gave the same order."

    def see(self):
        order = os.environ.get("PYTHONHASHSEED", "0")
        return np.array([int(order), 0, 0], float)


for world in (Sets, MatchesByLuck):
    try:
        check_env(world, steps=10)
        print("it repeats itself")
    except stretto.StrettoError as error:
        print(str(error).replace(chr(10), " "))
with stretto.make_vec(Sets, 2, backend="process", workers=2) as envs, warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    envs.reset(seed=0)
    envs.send(np.zeros(2, int))  # which moves the caller's share into a worker
    envs.recv()
    print(said[0].message if said else "nothing was said")
"""


def test_a_worker_that_loses_a_request_is_found_out():
    from stretto.testing import check_worker

    class Forgetful(InlineWorker):
        def signal(self, code):
            return self.made if code == 2 else super().signal(code)

    with pytest.raises(ContractBroken, match="requests must be numbered one by one"):
        check_worker(lambda index, capacity, arena, bell, factory: Forgetful(index, capacity, arena, factory))


def test_a_worker_that_does_not_share_what_it_says_is_found_out():
    from stretto.testing import check_worker

    class Apart(InlineWorker):
        def __init__(self, index, capacity, arena, factory):
            elsewhere = Arena.create(shared=False)
            elsewhere.allocate(64)
            super().__init__(index, capacity, elsewhere, factory)

    def start(index, capacity, arena, bell, factory):
        return Apart(index, capacity, arena, factory)

    with pytest.raises(ContractBroken, match="both sides must see the same memory"):
        check_worker(start)
    with pytest.raises(ContractBroken, match="must say whether it pickles and shares memory"):
        check_worker(start, shares_memory=False)


@pytest.mark.usefixtures("workers_without_torch")
def test_the_order_of_a_set_of_strings_is_the_same_in_every_worker_and_after_the_launchers_death():
    """Python gives strings other hashes in every process that it starts, unless it is told not to."""
    import os
    import signal

    import stretto
    from stretto.workers.launcher import launcher

    names = makes(ShowsTheOrderOfASet)
    with stretto.make_vec(names, 2, backend="process", workers=2, isolate=True) as envs:
        before, _ = envs.reset(seed=0)
        os.kill(launcher().pid, signal.SIGKILL)
        after, _ = envs.reset(seed=0)
        check_same(after, before, "workers of one launcher and of the next")
        assert np.array_equal(before[0], before[1])


class ShowsTheOrderOfASet(Drift):
    def see(self):
        return np.array([hash(name) % 1009 for name in ("one", "two", "three")], np.float32)
