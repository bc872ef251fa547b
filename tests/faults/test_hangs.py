"""A world that does not come back is replaced once where that can be done, and told with its stack where not."""

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

import stretto
from stretto.testing import play, sample_actions
from tests.faults.worlds import Schedule, Scheduled
from tests.worlds import CountTo, Drift

pytestmark = pytest.mark.timeout(60)

SECONDS = 0.5
ISOLATED = {"backend": "process", "workers": 2, "isolate": True}
LIMITS = {"step_timeout": SECONDS, "reset_timeout": SECONDS, "start_timeout": 5.0}


def hang() -> None:
    while True:
        time.sleep(3600)


def hangers(folder: Path, moments: tuple[str, ...], act: Any = hang, count: int = 4) -> list[Any]:
    """Return makers of worlds of which the one in slot 1 does not come back from `moments`."""
    (folder / "passed").mkdir(parents=True)
    (folder / "empty").mkdir()
    makers = [partial(Scheduled, Schedule(folder / "empty", ()), act) for _ in range(count)]
    makers[1] = partial(Scheduled, Schedule(folder / "passed", moments), act)
    return makers


def expected_run(folder: Path, steps: int = 24) -> Any:
    with stretto.make_vec(hangers(folder, ()), 4, backend="serial") as envs:
        actions = sample_actions(envs, steps)
        return play(envs, actions, 3), actions


@pytest.mark.parametrize("transport", ["shared", "message"])
@pytest.mark.parametrize("moment", ["reset 1", "step 4", "reset 2"])
def test_one_that_hangs_once_is_replaced_and_nothing_differs(moment, transport, tmp_path):
    expected, actions = expected_run(tmp_path / "none")
    makers = hangers(tmp_path / "some", (moment,))
    with stretto.make_vec(makers, 4, transport=transport, **ISOLATED, **LIMITS) as envs:
        play(envs, actions, 3).check_same(expected, "a run with a hang and one without")
        assert envs.statistics().restarts == 1


def test_one_that_hangs_again_is_told_with_its_stack_and_can_be_reset(tmp_path):
    makers = hangers(tmp_path, ("step 4", "step 4"))
    with stretto.make_vec(makers, 4, **ISOLATED, **LIMITS) as envs:
        envs.reset(seed=3)
        for _ in range(3):
            envs.step(np.zeros(4, int))
        with pytest.raises(stretto.WorldHung) as caught:
            envs.step(np.zeros(4, int))
        assert "in hang" in caught.value.stack
        assert "in hang" in str(caught.value)
        place = caught.value.place
        assert (place.doing, place.slot, place.worker, place.seed, place.episode) == ("stepping", 1, 0, 4, 0)
        envs.reset(seed=3)
        envs.step(np.zeros(4, int))


def test_one_that_hangs_while_it_is_built_is_told_with_its_stack(tmp_path):
    makers = hangers(tmp_path, ("build", "build"))
    with pytest.raises(stretto.WorldHung, match="while building") as caught:
        stretto.make_vec(makers, 4, **ISOLATED, start_timeout=3.0)  # a worker first imports this folder's worlds
    assert "in hang" in caught.value.stack


def test_one_that_hangs_while_it_is_replayed_counts_as_the_same_hang(tmp_path):
    makers = hangers(tmp_path, ("step 4", "step 2"))
    with stretto.make_vec(makers, 4, **ISOLATED, **LIMITS) as envs:
        envs.reset(seed=3)
        for _ in range(3):
            envs.step(np.zeros(4, int))
        with pytest.raises(stretto.WorldHung, match=r"while replaying \(slot 1"):
            envs.step(np.zeros(4, int))


def test_one_that_hangs_while_it_is_closed_is_told_when_all_are_closed(tmp_path):
    envs = stretto.make_vec(hangers(tmp_path, ("close",)), 4, **ISOLATED, **LIMITS)
    envs.reset(seed=3)
    pids = envs.worker_pids
    with pytest.raises(stretto.WorldHung, match="while closing") as caught:
        envs.close()
    assert "in hang" in caught.value.stack
    assert not any(Path("/proc", str(pid)).exists() for pid in pids)


def test_a_world_that_is_slow_to_close_is_waited_for(tmp_path):
    envs = stretto.make_vec(hangers(tmp_path, ("close",), partial(time.sleep, 1.5)), 4, **ISOLATED)
    envs.reset(seed=3)
    envs.close()
    assert len(list((tmp_path / "passed").iterdir())) == 1


@pytest.mark.parametrize("moment", ["step 3", "reset 2"])
def test_truncate_and_raise_hold_for_hangs_too(moment, tmp_path):
    for on_crash in ("truncate", "raise"):
        makers = hangers(tmp_path / on_crash, (moment,))
        with stretto.make_vec(makers, 4, on_crash=on_crash, **ISOLATED, **LIMITS) as envs:
            envs.reset(seed=3)
            expected = (
                pytest.warns(stretto.SlotTruncated) if on_crash == "truncate" else pytest.raises(stretto.WorldHung)
            )
            with expected:
                for _ in range(40):
                    if envs.step(np.zeros(4, int)).infos.get("_crash", np.zeros(4, bool)).any():
                        break
            # The slot that hangs while it is reset has no episode to lose; its neighbour has.
            lost = 2 if moment == "step 3" else 1
            assert envs.statistics().truncations == (lost if on_crash == "truncate" else 0)


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

    with stretto.make_vec(Slowish, 5, backend="process", workers=1, isolate=True, **LIMITS) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(5, int))
        assert envs.statistics().restarts == 0


def test_a_long_replay_moves_and_is_no_hang():
    class Slowish(CountTo):
        def move(self, action: Any) -> Any:
            time.sleep(0.02)
            return super().move(action)

    with stretto.make_vec(partial(Slowish, 1000), 1, backend="process", workers=1, isolate=True, **LIMITS) as envs:
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(np.zeros(1, int))
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        assert envs.step(np.zeros(1, int)).observations[0, 0] == 41
        assert envs.statistics().replayed_steps == 40


def test_no_limit_means_none():
    class Slowish(Drift):
        def move(self, action: Any) -> Any:
            time.sleep(1.0)
            return super().move(action)

    none = dict.fromkeys(LIMITS)
    with stretto.make_vec(Slowish, 2, **ISOLATED, **none) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(2, int))
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
        for thread in left:
            thread.join(0.5)
        assert sum(thread.is_alive() for thread in left) == 1  # the new one
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


@pytest.mark.parametrize("layout", [{"backend": "serial"}, {"backend": "process", "workers": 2}], ids=str)
@pytest.mark.parametrize("moment", ["reset 1", "step 3"])
def test_the_callers_own_share_cannot_be_ended_but_its_stack_is_shown(layout, moment, tmp_path, capfd):
    def doze() -> None:
        time.sleep(3 * SECONDS)

    makers = hangers(tmp_path, (moment,), doze)
    makers = [makers[0], makers[2], makers[3], makers[1]]  # the last slots are the caller's
    with stretto.make_vec(makers, 4, **layout, step_timeout=SECONDS, reset_timeout=SECONDS) as envs:
        envs.reset(seed=3)
        for _ in range(4):
            envs.step(np.zeros(4, int))
    told = capfd.readouterr().err
    assert told.count("no answer for 0.5 s") == 1
    assert f"while {'resetting' if moment == 'reset 1' else 'stepping'} (slot 3, worker" in told
    assert "in doze" in told
    assert "seed 6" in told


def test_the_callers_own_share_is_not_watched_without_a_limit(tmp_path, capfd):
    makers = hangers(tmp_path, ("step 2",), partial(time.sleep, 1.0))
    with stretto.make_vec(makers, 4, backend="serial", step_timeout=None) as envs:
        envs.reset(seed=3)
        for _ in range(3):
            envs.step(np.zeros(4, int))
    assert capfd.readouterr().err == ""
