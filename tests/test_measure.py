"""What is measured before something is chosen."""

from __future__ import annotations

import hashlib
import time

from stretto.measure import LockWatch, duration


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_python_code_keeps_the_interpreter_from_other_threads_and_code_in_c_may_leave_it():
    data = bytes(1 << 20)
    with LockWatch() as held:
        compute(0.05)
    with LockWatch() as left:
        for _ in range(30):
            hashlib.sha256(data)
    assert held.free < 0.5 < left.free


def test_waiting_leaves_the_interpreter_to_others():
    with LockWatch() as lock:
        time.sleep(0.05)
    assert lock.free > 0.5


def test_times_are_written_with_a_unit_that_suits_them():
    assert [duration(seconds) for seconds in (2.5, 0.0512, 0.001, 12.34e-6)] == ["2.5 s", "51.2 ms", "1 ms", "12.3 µs"]
