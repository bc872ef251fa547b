"""What is measured before something is chosen."""

from __future__ import annotations

import time

from stretto import measure
from stretto.measure import duration


def test_time_spent_waiting_for_a_core_counts_as_computing(monkeypatch):
    assert measure.time_calls(lambda: time.sleep(0.002), budget_seconds=0.02).busy < 0.5
    got = iter([(0.0, 0.0), (0.01, 1e6)])
    monkeypatch.setattr(measure, "core_seconds", lambda: next(got))
    assert measure.time_calls(lambda: time.sleep(0.002), budget_seconds=0.02).busy == 1.0


def test_times_are_written_with_a_unit_that_suits_them():
    assert [duration(seconds) for seconds in (2.5, 0.0512, 0.001, 12.34e-6)] == ["2.5 s", "51.2 ms", "1 ms", "12.3 µs"]
