"""Ratings of policies that played together: Bradley and Terry's model, on the scale of Elo.

Of two policies whose ratings differ by 400 points, the higher one is expected to win ten times as often. Ratings are relative
to those who played: their mean is 1500. A normal prior keeps the rating of a policy that always won finite, and its interval
wide; the intervals are those of the normal distribution around the most likely ratings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from stretto.evaluation.statistics.averages import CONFIDENCE, Interval

MEAN_RATING = 1500.0
_POINTS = 400 / math.log(10)  # in one unit of log odds
_PRIOR_SD = math.log(10)  # 400 points: beyond ten to one, episodes have to show it
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_MOST_ROUNDS, _LONGEST_STEP, _SMALLEST_STEP = 200, 1.0, 1e-12

Wins = Mapping[tuple[str, str], float]
"""How often the first of two policies was better than the second; ties are half a win for each."""

_Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rating:
    """How strong a policy is among those that it played with."""

    points: float
    interval: Interval


def rate(policies: Sequence[str], wins: Wins) -> dict[str, Rating]:
    """Return the rating of each policy; `wins` may leave out pairs that never met."""
    won = np.array([[float(wins.get((one, other), 0.0)) for other in policies] for one in policies])
    strengths = np.zeros(len(policies))
    for _ in range(_MOST_ROUNDS):
        chances = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
        met = won + won.T
        slope = (won - met * chances).sum(axis=1) - strengths / _PRIOR_SD**2
        step = (_inverse(_curvature(met, chances)) * slope).sum(axis=1)
        step *= min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), _SMALLEST_STEP))
        strengths = strengths + step
        if float(np.abs(step).max()) < _SMALLEST_STEP:
            break
    strengths = strengths - strengths.mean()
    chances = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
    spreads = _relative_spreads(_inverse(_curvature(won + won.T, chances)))
    return {
        policy: _rating(float(strength), float(spread))
        for policy, strength, spread in zip(policies, strengths, spreads, strict=True)
    }


def _rating(strength: float, spread: float) -> Rating:
    points, reach = MEAN_RATING + _POINTS * strength, _POINTS * _Z * spread
    return Rating(points, (points - reach, points + reach))


def _curvature(met: _Matrix, chances: _Matrix) -> _Matrix:
    """Return minus the second derivatives of the posterior's logarithm."""
    weights: _Matrix = met * chances * chances.T
    np.fill_diagonal(weights, 0.0)
    return np.diag(weights.sum(axis=1) + _PRIOR_SD**-2) - weights


def _relative_spreads(covariance: _Matrix) -> _Matrix:
    """Return the standard deviations of strengths relative to their mean."""
    means = covariance.mean(axis=1)
    spreads: _Matrix = np.sqrt(np.diag(covariance) - 2 * means + means.mean())
    return spreads


def _inverse(matrix: _Matrix) -> _Matrix:
    """Invert a positive definite matrix, by elimination.

    Not by LAPACK: what it adds up first, and so the last digit, may depend on its number of threads.
    """
    size = len(matrix)
    rows = np.hstack([matrix, np.eye(size)])
    for i in range(size):
        rows[i] /= rows[i, i]
        others = np.arange(size) != i
        rows[others] -= rows[others, i : i + 1] * rows[i]
    return rows[:, size:]
