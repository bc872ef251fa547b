"""Counts that are put off are right whenever they are read."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from stretto.envs.counters import Counters

SLOTS, STEPS = 5, 200


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("ask_every", [1, 7, STEPS])
def test_it_does_not_matter_how_often_one_asks(mode, ask_every):
    draw = np.random.default_rng(1)
    tally = Counters(SLOTS, mode)
    waiting = np.zeros(SLOTS, bool)
    steps = episodes = 0
    numbers = np.zeros(SLOTS, int)
    for number in range(STEPS):
        terminated, truncated = draw.random(SLOTS) < 0.1, draw.random(SLOTS) < 0.1
        if mode is AutoresetMode.NEXT_STEP:  # a step that only resets ends nothing
            terminated &= ~waiting
            truncated &= ~waiting
            numbers += waiting
            steps -= waiting.sum()
        ended = terminated | truncated
        if mode is AutoresetMode.SAME_STEP:
            numbers += ended
        steps += SLOTS
        episodes += ended.sum()
        waiting = ended
        tally.stepped(terminated, truncated)
        if number % ask_every == ask_every - 1:
            assert (tally.counts.steps, tally.counts.episodes) == (steps, episodes)
            assert tally.episodes.tolist() == numbers.tolist()
