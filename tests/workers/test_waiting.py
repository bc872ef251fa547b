"""Looking before sleeping is a bet: one that is lost ends the looking, until waits are short again."""

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
        self.bet.end(self.now)
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


def test_after_a_bet_that_was_lost_it_sleeps_at_once_until_waits_are_short_again():
    waits = Waits()
    waits.wait(LONG)
    assert [waits.wait(LONG) for _ in range(50)] == [0.0] * 50
    assert waits.until_it_looks() == 2 * FEWEST_GOOD


def test_each_bet_that_is_lost_makes_it_wait_longer_for_the_next_up_to_a_bound():
    waits, counts = Waits(), []
    waits.wait(LONG)
    for _ in range(12):
        waits.until_it_looks()
        waits.wait(LONG)  # the bet after the one that was just won is lost
        counts.append(waits.until_it_looks())
        waits.wait(LONG)
    assert counts == sorted(counts)
    assert counts[-1] <= MOST_GOOD
    assert counts[-1] > counts[0]


def test_after_many_that_paid_one_lost_bet_costs_no_more_than_the_first():
    waits = Waits()
    for _ in range(5):
        waits.wait(LONG)
        waits.until_it_looks()
    for _ in range(2 * MOST_GOOD):
        waits.wait(SHORT)
    waits.wait(LONG)
    assert waits.until_it_looks() == 2 * FEWEST_GOOD


def test_without_a_core_to_spare_it_never_looks():
    bet = Spin(0.0)
    assert bet.begin(5.0, 1.0) == 5.0
    bet.end(5.0)
    assert bet.begin(6.0, 1.0) == 6.0
