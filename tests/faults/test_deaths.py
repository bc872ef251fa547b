"""A process may die at any moment, however it does, and its launcher with it; by default nobody sees more than a counter.

What becomes of the worlds of one that died, in every mode, is shown without processes in tests/envs/test_recovery.py.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import stretto
from stretto.testing import play, sample_actions
from stretto.workers.launcher import launcher
from tests.faults.worlds import Mortal, Schedule, end_process
from tests.worlds import CountTo, Drift, makes

pytestmark = pytest.mark.timeout(60)

STEPS = 16
ISOLATED = {"backend": "process", "workers": 2, "isolate": True}

transports = pytest.mark.parametrize("transport", ["shared", "message"])


def mortals(folder: Path, slot: int, moments: tuple[str, ...], how: str = "sigkill", count: int = 4) -> list[Any]:
    """Return makers of `count` worlds of which one, in `slot`, ends its process at `moments`."""
    (folder / "passed").mkdir(exist_ok=True)
    makers = [partial(Mortal, Schedule("", ()), how) for _ in range(count)]
    makers[slot] = partial(Mortal, Schedule(folder / "passed", moments), how)
    return makers


def undisturbed(folder: Path) -> Any:
    """Return what the same worlds give where nobody dies, and the actions."""
    with stretto.make_vec(mortals(folder, 0, ()), 4, backend="serial") as envs:
        actions = sample_actions(envs, STEPS)
        return play(envs, actions, 3), actions


ENDS = [("step 5", "sigkill"), ("step 5", "segfault"), ("step 5", "exit"), ("build", "sigkill"), ("write 5", "sigkill")]


@pytest.mark.parametrize(("moment", "how"), ENDS)
def test_a_process_that_ends_is_recovered_and_nothing_differs(moment, how, tmp_path):
    expected, actions = undisturbed(tmp_path)
    makers = mortals(tmp_path, 2, (moment,), how)
    with stretto.make_vec(makers, 4, checks="off", **ISOLATED) as envs:
        play(envs, actions, 3).check_same(expected, f"a run with a death at {moment} and one without")
        assert envs.statistics().truncations == 0
        assert envs.statistics().restarts == 1


@transports
def test_one_that_dies_while_it_steps_and_while_it_is_reset_is_recovered_over_both_transports(transport, tmp_path):
    expected, actions = undisturbed(tmp_path)
    makers = mortals(tmp_path, 1, ("reset 2", "step 11"))
    with stretto.make_vec(makers, 4, transport=transport, **ISOLATED) as envs:
        play(envs, actions, 3).check_same(expected, "a run with two deaths and one without")
        assert envs.statistics().restarts == 2


MASSACRES = [
    ("shared", {3: "launcher", 6: "launcher, worker"}),
    ("message", {4: "worker, launcher"}),
]


@pytest.mark.usefixtures("workers_without_torch")  # which each new launcher would import again
@pytest.mark.parametrize(("transport", "massacres"), MASSACRES, ids=["shared", "message"])
def test_the_launcher_may_die_alone_or_with_a_worker(transport, massacres, tmp_path):
    expected, actions = undisturbed(tmp_path)
    layout = {"backend": "process", "workers": 3, "isolate": True, "transport": transport}
    with stretto.make_vec(mortals(tmp_path, 0, ()), 4, **layout) as envs:

        def kill(number: int) -> None:
            if number not in massacres:
                return
            # A launcher takes its workers with it, but not at once: without a look, they may die in a later massacre.
            dying = [psutil.Process(pid) for pid in envs.worker_pids]
            pids = {"worker": envs.worker_pids[1], "launcher": launcher().pid}
            for who in massacres[number].split(", "):
                os.kill(pids[who], signal.SIGKILL)
            assert not psutil.wait_procs(dying, timeout=20)[1]

        play(envs, actions, 3, before_step=kill).check_same(expected, "a run with massacres and one without")
        assert envs.statistics().restarts == 3 * len(massacres)


@pytest.mark.usefixtures("workers_without_torch")
def test_a_launcher_that_dies_while_it_starts_workers_is_replaced(tmp_path):
    launcher().close()
    killer = threading.Thread(target=_kill_launcher_soon)
    killer.start()
    with stretto.make_vec(Drift, 4, backend="process", workers=4, isolate=True) as envs:
        envs.reset(seed=0)
        assert len(set(envs.worker_pids)) == 4
    killer.join()


def _kill_launcher_soon() -> None:
    while launcher().pid is None:
        threading.Event().wait(0.001)
    os.kill(launcher().pid, signal.SIGKILL)


# ---- telling ----


def test_a_segfault_is_told_with_the_stack_of_the_crash(tmp_path):
    makers = mortals(tmp_path, 1, ("step 2",), "segfault")
    with stretto.make_vec(makers, 4, **ISOLATED, on_crash="raise") as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, int))
        with pytest.raises(stretto.WorkerDied) as caught:
            envs.step(np.zeros(4, int))
    assert "SIGSEGV" in str(caught.value)
    assert "in end_process" in str(caught.value)


def test_raise_tells_the_first_death_and_the_environment_can_be_reset():
    with stretto.make_vec(Drift, 4, **ISOLATED, on_crash="raise") as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, int))
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        with pytest.raises(stretto.WorkerDied, match=r"worker 1 died while stepping .*signal 9"):
            envs.step(np.zeros(4, int))
        first, _ = envs.reset(seed=0)
        again, _ = envs.reset(seed=0)
        assert first.tobytes() == again.tobytes()
        assert envs.statistics().restarts == 0


def test_a_death_is_noticed_at_once():
    with stretto.make_vec(Drift, 2, **ISOLATED, on_crash="raise") as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(stretto.WorkerDied):
            envs.step(np.zeros(2, int))
        assert time.monotonic() - began < 2.0  # benchmarks/kills.py measures it; this is about waiting for a deadline


class EndsLater(CountTo):
    """Does something at step `at_step` of its second episode; an episode has four steps."""

    def __init__(self, act, at_step=3):
        super().__init__(limit=4)
        self.act, self.at_step, self.episode = act, at_step, 0

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        if self.episode == 2 and self.at_step == 0:
            self.act()
        return super().reset(seed=seed, options=options)

    def move(self, action):
        if self.episode == 2 and self.steps == self.at_step:
            self.act()
        return super().move(action)


def hang():
    threading.Event().wait()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("way", ["step", "send"])
@pytest.mark.parametrize(
    ("act", "kind"),
    [(partial(end_process, "sigkill"), stretto.WorkerDied), (hang, stretto.WorldHung)],
    ids=["dies", "hangs"],
)
def test_an_error_names_the_step_of_the_episode(act, kind, way, mode):
    worlds = [makes(CountTo, 9), makes(EndsLater, act)]
    options = {"isolate": True, "workers": 1, "on_crash": "raise", "step_timeout": 0.5, "autoreset_mode": mode}
    with stretto.make_vec(worlds, 2, backend="process", **options) as envs:
        envs.reset(seed=3)
        with pytest.raises(kind, match=r"while stepping \(slot 1, worker 0, episode 1, step 3, seed 4\)") as lost:
            for _ in range(9):
                if way == "step":
                    envs.step([0, 0])
                else:
                    envs.send(np.zeros(2, int))
                    envs.recv()
        assert lost.value.place.step == 3


def test_a_death_in_an_automatic_reset_is_told_as_one():
    worlds = [makes(CountTo, 9), makes(EndsLater, partial(end_process, "sigkill"), at_step=0)]
    with stretto.make_vec(worlds, 2, backend="process", isolate=True, workers=1, on_crash="raise") as envs:
        envs.reset(seed=3)
        with pytest.raises(stretto.WorkerDied, match=r"while resetting \(slot 1"):
            for _ in range(9):
                envs.step([0, 0])
