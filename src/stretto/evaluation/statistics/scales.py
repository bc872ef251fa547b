"""Normalized scores: rewards on a scale of each mission, which two reference policies give it.

A mission's scale is 0 at the mean reward of the lower reference and 1 at that of the higher one. Rewards of several missions
are comparable only on such scales. The two means are taken as exact: intervals do not tell how uncertain the scale is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stretto.errors import UsageError
from stretto.evaluation.records import RecordKey

References = tuple[str, str]
"""The labels of the policies whose mean rewards are 0 and 1."""

Scale = tuple[float, float]
"""The rewards that are 0 and 1 on one mission."""

_LEAST_GAP = 1e-9
"""Relative to the rewards: less than that between the references is rounding."""


def references_of(text: str, labels: Sequence[str]) -> References:
    """Read `LOW:HIGH`, both of them labels, which may themselves hold colons.

    Raises:
        UsageError: if there are no two such labels.
    """
    pieces = text.split(":")
    for cut in range(1, len(pieces)):
        low, high = ":".join(pieces[:cut]), ":".join(pieces[cut:])
        if low in labels and high in labels and low != high:
            return low, high
    raise UsageError(
        f"normalize must be LOW:HIGH, two different policies of the evaluation, got {text!r}; "
        f"the policies are {', '.join(labels)}, and others can be added to them"
    )


def scales_of(rewards: Mapping[RecordKey, float], references: References) -> dict[str, Scale]:
    """Return the scales of missions by name; one has none where the higher reference is not better than the lower one."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for (mission, label, _), reward in rewards.items():
        for place, reference in enumerate(references):
            if label == reference:
                found.setdefault(mission, ([], []))[place].append(reward)
    means = {
        mission: (math.fsum(low) / len(low), math.fsum(high) / len(high))
        for mission, (low, high) in found.items()
        if low and high
    }
    least = {mission: _LEAST_GAP * max(abs(zero), abs(one)) for mission, (zero, one) in means.items()}
    return {mission: (zero, one) for mission, (zero, one) in means.items() if one - zero > least[mission]}


def normalized(rewards: Mapping[RecordKey, float], scales: Mapping[str, Scale]) -> dict[RecordKey, float]:
    """Return the scores of episodes on missions that have a scale."""
    return {
        key: (reward - scales[key[0]][0]) / (scales[key[0]][1] - scales[key[0]][0])
        for key, reward in rewards.items()
        if key[0] in scales
    }
