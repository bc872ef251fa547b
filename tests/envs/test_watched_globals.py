"""What worlds read outside of themselves: workers have it as it was, and where the caller's share has not, it is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stretto
from stretto.identity.watched_globals import WatchedGlobals
from tests.worlds import CountTo

REWARD = 1.0
SETTINGS = {"bonus": 0.0}
CACHE: dict[int, int] = {}
UNREAD = 1


def bonus() -> float:
    return SETTINGS["bonus"]


class Rewarding(CountTo):
    """Its reward is made of a global, of a setting that a function reads, and of an attribute of its class."""

    extra = 0.0

    def __init__(self) -> None:
        super().__init__(limit=4)

    def move(self, action: Any) -> Any:
        CACHE[self.steps] = self.steps
        observation, _, *rest = super().move(action)
        return (observation, REWARD + bonus() + self.extra, *rest)


def change(what: str) -> None:
    global REWARD
    if what == "a global":
        REWARD = 2.0
    elif what == "a setting":
        SETTINGS["bonus"] = 1.0
    else:
        Rewarding.extra = 1.0


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    global REWARD
    yield
    REWARD, Rewarding.extra, SETTINGS["bonus"] = 1.0, 0.0, 0.0
    CACHE.clear()


NAMES = {"a global": r"\w+\.REWARD", "a setting": r"\w+\.SETTINGS\['bonus'\]", "a class": r"Rewarding\.extra"}


@pytest.mark.parametrize("what", NAMES)
def test_a_value_that_changes_after_making_is_told_with_its_name_and_the_slots(what):
    with stretto.make_vec(Rewarding, 4, backend="process", workers=2) as envs:
        envs.reset(seed=0)
        assert envs.step(np.zeros(4, int)).rewards.tolist() == [1, 1, 1, 1]
        change(what)
        words = rf"{NAMES[what]} was .* when they were made and is .*: slots 2 to 3, which run in the caller, see that"
        with pytest.warns(stretto.GlobalsChanged, match=words):
            envs.reset(seed=0)
        assert envs.step(np.zeros(4, int)).rewards.tolist() == [1, 1, 2, 2]
        envs.reset(seed=0)  # which says it no more


def test_it_is_told_without_a_reset_too():
    with stretto.make_vec(Rewarding, 2, backend="process", workers=2) as envs:
        envs.reset(seed=0)
        change("a global")

        def step_on() -> None:
            for _ in range(64):
                envs.step(np.zeros(2, int))

        with pytest.warns(stretto.GlobalsChanged, match="REWARD"):
            step_on()


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"backend": "process", "isolate": True}], ids=str)
def test_where_all_slots_see_the_same_nothing_is_said(options):
    with stretto.make_vec(Rewarding, 2, workers=1, **options) as envs:
        change("a global")
        envs.reset(seed=0)
        assert len(set(envs.step(np.zeros(2, int)).rewards.tolist())) == 1


def test_a_worker_that_is_replaced_sees_what_it_saw_at_first():
    with stretto.make_vec(Rewarding, 2, backend="process", workers=2, isolate=True) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(2, int))
        change("a global")
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        assert envs.step(np.zeros(2, int)).rewards.tolist() == [1, 1]
        assert envs.statistics().truncations == 0


def test_only_what_the_code_reads_is_watched_and_a_cache_may_grow():
    watched = WatchedGlobals([Rewarding])
    global UNREAD
    UNREAD += 1
    CACHE[1] = 1
    assert watched.changed() == []
    change("a setting")
    assert [(before, now) for _, before, now in watched.changed()] == [(0.0, 1.0)]
    assert watched.changed() == []


def test_worlds_of_installed_packages_are_left_alone():
    import gymnasium

    assert WatchedGlobals([gymnasium.Env, SimpleNamespace])._kept == {}


IMPORTED = """
import sys
import warnings

import stretto

sys.path.insert(0, sys.argv[1])
import worlds_of_mine

worlds_of_mine.REWARD = 2.0
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    stretto.make_vec(worlds_of_mine.Mine, 2, backend="process", workers=2).close()
print(*(f"{one.category.__name__}: {one.message}" for one in said))
"""

MODULE = """
import gymnasium
import numpy as np

REWARD = 1.0


class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), REWARD, False, False, {}
"""


def test_a_global_of_an_imported_module_that_was_changed_before_is_told_when_the_worlds_are_made(tmp_path):
    (tmp_path / "worlds_of_mine.py").write_text(MODULE)
    ended = subprocess.run([sys.executable, "-c", IMPORTED, tmp_path], capture_output=True, text=True, check=True)
    told = "worlds_of_mine.REWARD is 2.0 in the caller and 1.0 in workers, which import worlds_of_mine anew"
    assert ended.stdout.startswith("GlobalsChanged: ")
    assert told in ended.stdout
