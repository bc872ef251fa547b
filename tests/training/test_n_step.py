"""Returns of some decisions ahead: rewards, what is left, and the row that continues them."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.training.n_step import returns

NO = False


def found(rewards: list[float], acted: list[int], ends: dict[int, str], n_steps: int) -> list[tuple[float, float, int]]:
    """Return rewards, discounts and rows ahead of the decisions that are known, in their order."""
    terminated, truncated = (np.array([[ends.get(row) == kind] for row in range(len(acted))]) for kind in "xl")
    flags = np.array(acted, np.bool_)[:, None]
    got = returns(np.array(rewards, np.float32)[:, None], flags, terminated, truncated, n_steps=n_steps, discount=0.5)
    rows = np.flatnonzero(got.known)
    return [(float(got.rewards[r, 0]), float(got.discounts[r, 0]), int(got.ahead[r, 0])) for r in rows]


@pytest.mark.parametrize(
    ("n_steps", "expected"),
    [(1, [(1, 0.5, 1), (2, 0.5, 2)]), (2, [(2, 0.25, 2), (2, 0.5, 2)])],
)
def test_the_last_decision_of_a_sequence_is_not_known_unless_its_episode_ended(
    n_steps: int, expected: list[tuple[float, float, int]]
) -> None:
    assert found([1, 2, 4], [1, 1, 1], {}, n_steps) == expected


def test_after_a_time_limit_the_last_observation_counts_and_after_an_end_nothing_does() -> None:
    # Rows 2 and 6 hold last observations.
    rows = [1, 2, 0, 8, 16, 0, 0], [1, 1, 0, 1, 1, 1, 0]
    assert found(*rows, {1: "l", 5: "x"}, 1) == [(1, 0.5, 1), (2, 0.5, 2), (8, 0.5, 4), (16, 0.5, 5), (0, 0, 6)]
    assert found(*rows, {1: "l", 5: "x"}, 3) == [(2, 0.25, 2), (2, 0.5, 2), (16, 0, 6), (16, 0, 6), (0, 0, 6)]


def test_a_decision_is_given_all_rewards_until_the_next_one() -> None:
    assert found([1, 2, 4, 8, 16], [1, 0, 0, 1, 0], {}, 1) == [(7, 0.5, 3)]
    assert found([1, 2, 4, 8, 16, 0], [1, 0, 0, 1, 0, 0], {4: "x"}, 2) == [(19, 0, 5), (24, 0, 5)]
