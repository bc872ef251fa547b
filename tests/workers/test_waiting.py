"""Looking before sleeping is a bet: a few that are lost end the looking, until waits are short again."""

from __future__ import annotations

import pytest

from stretto.workers.waiting import FEWEST_GOOD, LONGEST_SPIN_SECONDS, MOST_GOOD, SPIN_SHARE, Spin

LEAST = 0.5e-3
SHORT, LONG = 0.1e-3, 50e-3


class Waits:
    """Waits one after the other, on a clock that takes no time."""

    def __init__(self) -> None:
        self.bet, self.now = Spin(LEAST), 100.0

    def wait(self, seconds: float, worked: float = 1e-3) -> float:
        """Wait for so long, and return for how long it would have looked."""
        until = self.bet.begin(self.now, worked)
        looked = until - self.now
        self.now += seconds
        self.bet.ended = self.now
        self.now += worked
        return looked

    def until_it_looks(self, most: int = 2 * MOST_GOOD) -> int:
        """Return how many short waits it sleeps through before it looks again."""
        for count in range(most):
            if self.wait(SHORT) > 0:
                return count
        raise AssertionError("it never looks again")


def test_at_first_and_while_it_pays_it_looks():
    waits = Waits()
    assert all(waits.wait(SHORT) == pytest.approx(LEAST) for _ in range(100))


@pytest.mark.parametrize("worked", [0.0, 1e-3, 8e-3, 1.0])
def test_it_looks_for_a_share_of_the_time_that_it_has_worked_within_bounds(worked):
    assert Waits().wait(SHORT, worked) == pytest.approx(max(LEAST, min(SPIN_SHARE * worked, LONGEST_SPIN_SECONDS)))


def lose(waits: Waits) -> None:
    """Lose bets until it looks no more."""
    for _ in range(10):
        if waits.wait(LONG) == 0.0:
            return
    raise AssertionError("it goes on looking")


def test_a_long_wait_now_and_then_does_not_end_the_looking():
    waits = Waits()
    for _ in range(50):
        assert waits.wait(LONG) > 0
        assert all(waits.wait(SHORT) > 0 for _ in range(5))


def test_after_bets_that_were_lost_it_sleeps_at_once_until_waits_are_short_again():
    waits = Waits()
    lose(waits)
    assert [waits.wait(LONG) for _ in range(50)] == [0.0] * 50
    assert waits.until_it_looks() == FEWEST_GOOD


def test_each_time_it_loses_again_at_once_it_sleeps_longer_up_to_a_bound():
    waits, counts = Waits(), []
    for _ in range(12):
        lose(waits)
        counts.append(waits.until_it_looks())
    assert counts == sorted(counts)
    assert counts[0] == FEWEST_GOOD
    assert counts[-1] == MOST_GOOD


def test_after_many_that_paid_losing_costs_no_more_than_the_first_time():
    waits = Waits()
    for _ in range(5):
        lose(waits)
        waits.until_it_looks()
    for _ in range(2 * MOST_GOOD):
        waits.wait(SHORT)
    lose(waits)
    assert waits.until_it_looks() == FEWEST_GOOD


def test_without_a_core_to_spare_it_never_looks():
    bet = Spin(0.0)
    assert bet.begin(5.0, 1.0) == 5.0
    bet.ended = 5.0
    assert bet.begin(6.0, 1.0) == 6.0
