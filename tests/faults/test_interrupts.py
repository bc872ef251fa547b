"""Ctrl-C in the middle of anything: nothing is torn, and a reset goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

import stretto
from stretto.testing import play, sample_actions
from tests.backends import OPTIONS, every_backend
from tests.worlds import Drift, Slow

pytestmark = pytest.mark.timeout(60)


def interrupt_after(seconds: float) -> threading.Timer:
    """Press Ctrl-C in a moment."""
    timer = threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    return timer


@pytest.fixture(autouse=True)
def as_python_has_it():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@every_backend
def test_a_step_that_is_interrupted_needs_a_reset_and_then_goes_on(options):
    with stretto.make_vec(partial(Slow, 0.05), 4, **options) as envs:
        envs.reset(seed=0)
        timer = interrupt_after(0.12)
        with pytest.raises(KeyboardInterrupt):
            while True:
                envs.step(np.zeros(4, int))
        timer.join()
        with pytest.raises(stretto.ResetNeeded):
            envs.step(np.zeros(4, int))
        first, _ = envs.reset(seed=0)
        again, _ = envs.reset(seed=0)
        assert first.tobytes() == again.tobytes()
        envs.step(np.zeros(4, int))


@every_backend
def test_a_recv_that_is_interrupted_can_be_tried_again(options):
    with stretto.make_vec(partial(Slow, 0.2), 4, **options) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(4, int))
        timer = interrupt_after(0.1)
        with pytest.raises(KeyboardInterrupt):
            envs.recv()
        timer.join()
        if options["backend"] != "serial":  # there the step itself was interrupted
            assert sorted(envs.recv().ids) == [0, 1, 2, 3]
        envs.reset(seed=0)


@every_backend
def test_closing_after_an_interrupted_step_does_not_wait_for_it(options):
    class Sleeper(Drift):
        def move(self, action: Any) -> Any:
            deadline = time.monotonic() + 8.0
            while time.monotonic() < deadline:
                time.sleep(0.01)
            return super().move(action)

    envs = stretto.make_vec(Sleeper, 4, **options)
    envs.reset(seed=0)
    timer = interrupt_after(0.2)
    with pytest.raises(KeyboardInterrupt):
        envs.step(np.zeros(4, int))
    timer.join()
    began = time.monotonic()
    envs.close()
    assert time.monotonic() - began < 4.0


@pytest.mark.parametrize("backend", ["thread", "process"])
@pytest.mark.parametrize("many", ["workers", "worlds"])
def test_nor_for_one_worker_after_the_other_nor_for_all_of_its_worlds(many, backend):
    workers = 8 if many == "workers" else 2
    isolate = {"isolate": True} if backend == "process" else {}
    # All steps of a worker together take much longer than anybody should wait, each by itself does not.
    with stretto.make_vec(partial(Slow, 0.5), 80, backend=backend, workers=workers, **isolate) as envs:
        envs.reset(seed=0)
        timer = interrupt_after(0.2)
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.zeros(80, int))
        timer.join()
        began = time.monotonic()
    assert time.monotonic() - began < 4.0


@pytest.mark.parametrize("name", ["process-isolated", "process-message"])
def test_interrupts_at_any_moment_leave_nothing_torn(name):
    """Interrupts at moments that differ by microseconds, then a reset: what comes after it is always the same."""
    with stretto.make_vec(Drift, 4, backend="serial") as envs:
        actions = sample_actions(envs, 5)
        expected = play(envs, actions, 3)
    with stretto.make_vec(Drift, 4, **OPTIONS[name]) as envs:
        envs.reset(seed=0)
        moments = np.random.default_rng(0).uniform(0, 2e-3, 60)
        for seconds in moments:
            timer = _Alarm(seconds)
            try:
                timer.start()
                for _ in range(1000):
                    envs.step(np.zeros(4, int))
                    envs.get_attr("steps")
            except KeyboardInterrupt:
                pass
            finally:
                timer.stop()
            play(envs, actions, 3).check_same(expected, "a run after an interrupt and one without")


class _Alarm:
    """Ctrl-C by the clock of the kernel, which knows no bounds between lines of Python."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._before: Any = None

    def start(self) -> None:
        self._before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


def test_workers_take_no_notice_of_ctrl_c(capfd):
    with stretto.make_vec(Drift, 4, **OPTIONS["process-isolated"]) as envs:
        envs.reset(seed=0)
        for pid in envs.worker_pids:
            os.kill(pid, signal.SIGINT)
        envs.step(np.zeros(4, int))
        assert envs.statistics().restarts == 0
    assert capfd.readouterr() == ("", "")
