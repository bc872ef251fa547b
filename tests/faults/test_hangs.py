"""A process that does not come back is replaced or told with its stack; what runs in the caller is only told of.

When a hang is told, and what becomes of its worlds, is shown without waiting in tests/envs/test_recovery.py.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

import stretto
from stretto.workers import inline
from tests.faults.worlds import TOLD, Schedule, Scheduled, doze
from tests.worlds import CountTo, Drift

pytestmark = pytest.mark.timeout(60)

SECONDS = 0.5
ISOLATED = {"backend": "process", "workers": 2, "isolate": True}
LIMITS = {"step_timeout": SECONDS, "reset_timeout": SECONDS, "start_timeout": 20.0}


def hang() -> None:
    while True:
        time.sleep(3600)


def hangers(folder: Path, moments: tuple[str, ...], act: Any = hang, count: int = 4) -> list[Any]:
    """Return makers of worlds of which the one in slot 1 does not come back from `moments`."""
    (folder / "passed").mkdir(parents=True)
    makers = [partial(Scheduled, Schedule("", ()), act) for _ in range(count)]
    makers[1] = partial(Scheduled, Schedule(folder / "passed", moments), act)
    return makers


# ---- in processes ----


@pytest.mark.parametrize("transport", ["shared", "message"])
def test_one_that_hangs_is_replaced_and_told_with_its_stack_when_it_hangs_again(transport, tmp_path):
    makers = hangers(tmp_path, ("step 4", "step 4"))
    with stretto.make_vec(makers, 4, transport=transport, **ISOLATED, **LIMITS) as envs:
        envs.reset(seed=3)
        for _ in range(3):
            envs.step(np.zeros(4, int))
        pids = envs.worker_pids
        with pytest.raises(stretto.WorldHung) as caught:
            envs.step(np.zeros(4, int))
        assert "in hang" in caught.value.stack
        assert "in hang" in str(caught.value)
        place = caught.value.place
        assert (place.doing, place.slot, place.worker, place.seed, place.episode) == ("stepping", 1, 0, 4, 0)
        assert envs.statistics().restarts == 1
        assert not Path("/proc", str(pids[0])).exists()
        envs.reset(seed=3)
        envs.step(np.zeros(4, int))


def test_one_that_hangs_while_it_is_closed_is_told_when_all_are_closed(tmp_path):
    envs = stretto.make_vec(hangers(tmp_path, ("close",)), 4, **ISOLATED, **LIMITS)
    envs.reset(seed=3)
    pids = envs.worker_pids
    with pytest.raises(stretto.WorldHung, match="while closing") as caught:
        envs.close()
    assert "in hang" in caught.value.stack
    assert not any(Path("/proc", str(pid)).exists() for pid in pids)


def test_a_stopped_worker_is_a_hang_without_a_stack():
    with stretto.make_vec(CountTo, 2, **ISOLATED, **LIMITS) as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGSTOP)
        assert envs.step(np.ones(2, int)).observations[:, 0].tolist() == [1, 1]
        assert envs.statistics().restarts == 1


def test_the_limit_is_for_one_world_not_for_all_of_a_worker():
    class Slowish(Drift):
        def move(self, action: Any) -> Any:
            time.sleep(SECONDS / 2)
            return super().move(action)

    with stretto.make_vec(Slowish, 3, backend="process", workers=1, isolate=True, **LIMITS) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(3, int))
        assert envs.statistics().restarts == 0


# ---- in the caller's process ----


def test_a_thread_that_hangs_is_told_and_left_behind_and_writes_nothing_when_it_comes_back(tmp_path):
    release = threading.Event()
    makers = hangers(tmp_path, ("step 4",), release.wait)
    with stretto.make_vec(makers, 4, backend="thread", workers=2, **LIMITS) as envs:
        envs.reset(seed=3)
        for _ in range(3):
            envs.step(np.zeros(4, int))
        with pytest.raises(stretto.WorldHung) as caught:
            envs.step(np.zeros(4, int))
        assert "release.wait" in caught.value.stack or "self.act()" in caught.value.stack
        assert (caught.value.place.slot, caught.value.place.worker) == (1, 0)
        first, _ = envs.reset(seed=3)
        left = [thread for thread in threading.enumerate() if thread.name == "stretto-worker-0"]
        release.set()
        left[0].join(5.0)
        assert [thread.is_alive() for thread in left] == [False, True]  # the second is the new one
        again, _ = envs.reset(seed=3)
        assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("slot", [1, 3])
def test_a_thread_that_hangs_with_the_global_generators_is_the_one_that_is_told(slot, tmp_path):
    """The others wait for their turn with them, and go on when it was taken from the one that hangs."""
    release = threading.Event()
    makers = hangers(tmp_path, ("step 2",), release.wait)
    makers[slot], makers[1] = makers[1], makers[slot]
    before = random.getstate(), np.random.get_state()[1].tobytes()
    with stretto.make_vec(makers, 4, backend="thread", workers=4, global_rng="private", **LIMITS) as envs:
        envs.reset(seed=3)
        with pytest.raises(stretto.WorldHung) as caught:
            for _ in range(5):
                envs.step(np.zeros(4, int))
        assert caught.value.place.slot == slot
        envs.reset(seed=3)
        envs.step(np.zeros(4, int))
        release.set()
        envs.reset(seed=3)
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before


def test_a_thread_that_hangs_while_it_is_closed_is_told(tmp_path):
    release = threading.Event()
    envs = stretto.make_vec(hangers(tmp_path, ("close",), release.wait), 4, backend="thread", workers=2, **LIMITS)
    with pytest.raises(stretto.WorldHung, match="while closing"):
        envs.close()
    release.set()


@pytest.fixture
def told(monkeypatch):
    """Let the watchdog look often, and give an event that is set when it has told of somebody."""
    TOLD.clear()

    def dump(*args: Any) -> None:
        shown(*args)
        TOLD.set()

    shown = inline._dump
    monkeypatch.setattr(inline, "_dump", dump)
    monkeypatch.setattr(inline, "_LOOK_SECONDS", 0.02)
    return TOLD


LAYOUTS = [({"backend": "serial"}, 0.1), ({"backend": "process", "workers": 2}, SECONDS)]


@pytest.mark.parametrize(("layout", "limit"), LAYOUTS, ids=["serial", "process"])
@pytest.mark.parametrize("moment", ["reset 1", "step 3"])
def test_the_callers_own_share_cannot_be_ended_but_its_stack_is_shown(layout, limit, moment, told, tmp_path, capfd):
    makers = hangers(tmp_path, (moment,), doze)
    makers = [makers[0], makers[2], makers[3], makers[1]]  # the last slots are the caller's
    with stretto.make_vec(makers, 4, **layout, step_timeout=limit, reset_timeout=limit) as envs:
        envs.reset(seed=3)
        for _ in range(4):
            envs.step(np.zeros(4, int))
    shown = capfd.readouterr().err
    assert shown.count(f"no answer for {limit} s") == 1
    assert f"while {'resetting' if moment == 'reset 1' else 'stepping'} (slot 3, worker" in shown
    assert "in doze" in shown
    assert "seed 6" in shown


def test_of_a_block_that_the_caller_has_alone_too(told, capfd):
    class Dozing(CartPoleVectorEnv):
        def step(self, action):
            if self.steps[0] == 20:  # by now it is known to draw from no global generators
                doze()
            return super().step(action)

    with stretto.make_vec(Dozing, 4, vectorized=1, backend="serial", step_timeout=0.1) as envs:
        envs.reset(seed=3)
        for k in range(22):
            envs.step(np.full(4, k % 2))
    shown = capfd.readouterr().err
    assert shown.count("no answer for 0.1 s while stepping (slot 0, worker 0, step 21, seed 3)") == 1
    assert "in doze" in shown


def test_the_callers_own_share_is_not_watched_without_a_limit(told, tmp_path, capfd):
    makers = hangers(tmp_path, ("step 2",), partial(time.sleep, 0.3))
    with stretto.make_vec(makers, 4, backend="serial", step_timeout=None) as envs:
        envs.reset(seed=3)
        for _ in range(3):
            envs.step(np.zeros(4, int))
    assert not told.is_set()
    assert capfd.readouterr().err == ""
