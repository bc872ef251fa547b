"""Returns of some decisions ahead, within sequences of rows, and the row whose value continues them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.spaces import Array


@dataclass(frozen=True)
class Returns:
    """What followed the decision in each row: arrays (rows, ...).

    A decision is worth `rewards + discounts * value(ahead)`, where `ahead` is the number of a row, perhaps of the one after
    the last. Only rows in which an agent acted, and of which it is `known` what followed, count.
    """

    rewards: Array
    discounts: Array
    ahead: Array
    known: Array


def returns(
    rewards: Array, acted: Array, terminated: Array, truncated: Array, *, n_steps: int, discount: float
) -> Returns:
    """Return what followed each decision, up to `n_steps` decisions ahead. Arrays are (rows, ...).

    A decision is given the rewards of all rows up to the agent's next one. The row after an end is the last observation of
    that episode: after a time limit its value counts, after a real end nothing does. The last decision in a sequence is
    not known, unless its episode ended: more rewards may follow.
    """
    gained, ahead, known, over, last = _one_decision(rewards, acted, terminated, truncated)
    total, left = gained.copy(), np.full(gained.shape, discount)
    to, ended, stops = ahead, over, last
    for _ in range(n_steps - 1):
        next_one = np.minimum(to, len(rewards) - 1)
        goes_on = ~stops & (to < len(rewards)) & np.take_along_axis(known, next_one, 0)
        then = [np.take_along_axis(array, next_one, 0) for array in (gained, ahead, over, last)]
        total += np.where(goes_on, left * then[0], 0.0)
        left = np.where(goes_on, left * discount, left)
        to, ended, stops = (np.where(goes_on, new, old) for new, old in zip(then[1:], (to, ended, stops), strict=True))
    return Returns(total.astype(np.float32), (left * ~ended).astype(np.float32), to, known)


def _one_decision(rewards: Array, acted: Array, terminated: Array, truncated: Array) -> tuple[Array, ...]:
    """Return for each row: what its decision gained, the row after it, whether that is known, is an end, stops there."""
    count, others = len(rewards), rewards.shape[1:]
    gained, ahead = np.zeros(rewards.shape), np.zeros(rewards.shape, np.int64)
    known, over, last = (np.zeros(rewards.shape, np.bool_) for _ in range(3))
    waiting, to = np.zeros(others), np.full(others, count)
    ended, stops = np.zeros(others, np.bool_), np.zeros(others, np.bool_)
    for row in range(count - 1, -1, -1):
        end, mine = terminated[row] | truncated[row], acted[row]
        waiting, to = np.where(end, 0.0, waiting) + rewards[row], np.where(end, row + 1, to)
        ended, stops = np.where(end, terminated[row], ended), stops | end
        gained[row], ahead[row], over[row], last[row] = waiting, to, ended, stops
        known[row] = mine & (stops | (to < count))
        waiting, to = np.where(mine, 0.0, waiting), np.where(mine, row, to)
        ended, stops = ended & ~mine, stops & ~mine
    return gained, ahead, known, over, last
