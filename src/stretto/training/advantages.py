"""Advantages: how much better than expected each action turned out, by generalized advantage estimation."""

from __future__ import annotations

import numpy as np

from stretto.spaces import Array


def advantages(  # noqa: PLR0913, PLR0917  arrays that belong together, and two numbers
    values: Array,
    rewards: Array,
    acted: Array,
    terminated: Array,
    truncated: Array,
    discount: float,
    smoothing: float,
    shares: Array | None = None,
) -> Array:
    """Return the advantage of each row in which an agent acted, and 0 elsewhere. Arrays are (rows, ...).

    `values` has a row more: what follows. The row after an end is the last observation of that episode: after a time limit
    its value counts, after a real end nothing does. A decision is given the rewards of all rows up to the agent's next
    one, and discounts count decisions. `shares` are how likely each action is now, of how likely it was, 1 at most: with
    them, advantages are those of V-trace (Espeholt et al., 2018), which are these where all shares are 1.
    """
    found = np.zeros_like(rewards)
    later = np.zeros_like(rewards[0])  # the advantage of the next decision
    ahead = values[-1].copy()  # its value
    waiting = np.zeros_like(later)  # rewards since the decision that they belong to
    ended = terminated | truncated
    for row in range(len(rewards) - 1, -1, -1):
        over = ended[row]
        if over.any():
            ahead = np.where(over, np.where(terminated[row], 0.0, values[row + 1]), ahead)
            later, waiting = np.where(over, 0.0, later), np.where(over, 0.0, waiting)
        waiting = waiting + rewards[row]
        mine = acted[row]
        advantage = waiting + discount * ahead - values[row] + discount * smoothing * later
        if shares is not None:
            advantage = advantage * shares[row]
        if mine.all():
            found[row] = later = advantage
            ahead, waiting = values[row], np.zeros_like(waiting)
        else:
            later = np.where(mine, advantage, later)
            found[row] = np.where(mine, advantage, 0.0)
            ahead = np.where(mine, values[row], ahead)
            waiting = np.where(mine, 0.0, waiting)
    return found
