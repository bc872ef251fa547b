"""The interval of a share of wins in paired episodes, where a tie is half a win.

It is the score interval for paired outcomes (Tango, 1998). Without ties it is Wilson's. It is never a single point: ten wins
of ten, or ten ties of ten, leave room for what an eleventh episode might bring.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from stretto.evaluation.statistics.averages import CONFIDENCE, Interval

_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_HALVINGS = 60  # more than a float has digits


def share_of_wins(wins: int, ties: int, losses: int) -> float:
    """Return the share of episodes that were won, a tie being one half."""
    return (wins + ties / 2) / (wins + ties + losses)


def score_interval(wins: int, ties: int, losses: int) -> Interval:
    """Return the 95% interval of the share of wins; there must be at least one episode."""
    count = wins + ties + losses
    return (1 + _lowest(wins, losses, count)) / 2, (1 - _lowest(losses, wins, count)) / 2


def _lowest(wins: int, losses: int, count: int) -> float:
    """Return the lowest difference between the shares of wins and of losses that the episodes do not rule out."""
    low, high = -1.0, (wins - losses) / count
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        distance = wins - losses - count * middle
        if distance * distance > _Z * _Z * count * _variance(wins, losses, count, middle):
            low = middle
        else:
            high = middle
    return low


def _variance(wins: int, losses: int, count: int, difference: float) -> float:
    """Return the variance of an episode's outcome, if the true difference were this one.

    How many ties there would be then is what is most likely in the light of the episodes.
    """
    b = -wins - losses + (2 * count - wins + losses) * difference
    c = -losses * difference * (1 - difference)
    lost = (math.sqrt(max(0.0, b * b - 8 * count * c)) - b) / (4 * count)
    return max(0.0, 2 * lost + difference * (1 - difference))
