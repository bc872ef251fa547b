"""Ratings: what they are by hand, and that their intervals hold what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stretto.evaluation.statistics.ratings import MEAN_RATING, rate


def test_with_many_games_ten_wins_to_one_are_400_points():
    found = rate(["strong", "weak"], {("strong", "weak"): 100_000, ("weak", "strong"): 10_000})
    assert found["strong"].points - found["weak"].points == pytest.approx(400, abs=1)
    assert found["strong"].points + found["weak"].points == pytest.approx(2 * MEAN_RATING)
    low, high = found["strong"].interval
    assert high - low < 10


def test_who_always_won_has_a_finite_rating_and_a_wide_interval():
    few, many = (rate(["a", "b"], {("a", "b"): games})["a"] for games in (1.0, 50.0))
    assert MEAN_RATING < few.points < many.points < MEAN_RATING + 800
    assert few.interval[0] < MEAN_RATING < many.interval[0]
    assert many.interval[1] - many.interval[0] > 200


def test_policies_that_never_met_are_compared_through_a_third():
    found = rate(["a", "b", "c"], {("a", "b"): 30, ("b", "a"): 10, ("b", "c"): 30, ("c", "b"): 10})
    assert found["a"].points > found["b"].points > found["c"].points


def test_the_order_of_the_policies_does_not_matter():
    wins = {("a", "b"): 3.0, ("b", "a"): 1.5, ("c", "a"): 2.0}
    first, second = rate(["a", "b", "c"], wins), rate(["c", "a", "b"], wins)
    for policy in "abc":
        assert first[policy].points == pytest.approx(second[policy].points)
        assert first[policy].interval == pytest.approx(second[policy].interval)


def test_an_interval_covers_the_truth_about_95_times_in_a_hundred():
    rng = np.random.default_rng(0)
    covered, trials = 0, 300
    for _ in range(trials):
        strength = rng.normal(0, 0.7)
        won = rng.binomial(25, 1 / (1 + math.exp(-2 * strength)))
        low, high = rate(["a", "b"], {("a", "b"): float(won), ("b", "a"): float(25 - won)})["a"].interval
        covered += low <= MEAN_RATING + 400 / math.log(10) * strength <= high
    assert 0.91 <= covered / trials <= 0.99
