"""What is measured before something is chosen."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from stretto import measure
from stretto.measure import LockWatch, duration


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_python_code_keeps_the_interpreter_from_other_threads_and_code_in_c_may_leave_it():
    data = bytes(1 << 20)
    with LockWatch() as held:
        compute(0.05)
    assert held.free < 0.5
    assert is_left_free_by(lambda: [hashlib.sha256(data) for _ in range(30)])


def test_waiting_leaves_the_interpreter_to_others():
    assert is_left_free_by(lambda: time.sleep(0.05))


def is_left_free_by(function: Callable[[], object]) -> bool:
    """Whether it is seen to be free at all: on a busy machine it may be the watch that gets no core."""
    for _ in range(20):
        with LockWatch() as lock:
            function()
        if lock.free > 0.5:
            return True
    return False


def test_time_spent_waiting_for_a_core_counts_as_computing(monkeypatch):
    assert measure.time_calls(lambda: time.sleep(0.002), budget_seconds=0.02).busy < 0.5
    got = iter([(0.0, 0.0), (0.01, 1e6)])
    monkeypatch.setattr(measure, "core_seconds", lambda: next(got))
    assert measure.time_calls(lambda: time.sleep(0.002), budget_seconds=0.02).busy == 1.0


def test_times_are_written_with_a_unit_that_suits_them():
    assert [duration(seconds) for seconds in (2.5, 0.0512, 0.001, 12.34e-6)] == ["2.5 s", "51.2 ms", "1 ms", "12.3 µs"]
