"""What is measured before something is chosen."""

from __future__ import annotations

from stretto.measure import duration


def test_times_are_written_with_a_unit_that_suits_them():
    assert [duration(seconds) for seconds in (2.5, 0.0512, 0.001, 12.34e-6)] == ["2.5 s", "51.2 ms", "1 ms", "12.3 µs"]
