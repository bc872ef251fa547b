"""Processes are killed at random moments, dozens of times: nothing hangs, and nothing differs.

What becomes of a worker that is lost at any chosen moment is shown without processes in test_random_operations.py; here the
moments are those that nobody would choose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stretto
from stretto.envs.infos import info_of
from stretto.testing import difference, play, sample_actions
from tests.faults.killing import Killer
from tests.faults.worlds import OwnGenerator
from tests.worlds import GlobalDrift, TaskWorld

# Of launchers that are killed, too, each new one would import torch again.
pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("workers_without_torch")]

SLOTS = 6
STEPS = 64
EVERY = 4
"""Steps between two kills: 16 a run."""

LEAST_KILLS = 10
"""Some may miss. Four runs make 40 at least."""

SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {"transport": "shared"}),
    "GlobalDrift": (GlobalDrift, {"transport": "message"}),
}
SENT_SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "OwnGenerator": (OwnGenerator, {"transport": "shared"}),
    "TaskWorld": (TaskWorld, {"transport": "message", "tasks": lambda slot, episode, stream: slot + stream.random()}),
}
LAYOUT = {"backend": "process", "workers": 3, "isolate": True, "max_restarts": 50}


def undisturbed(world: Any, options: dict[str, Any]) -> Any:
    with stretto.make_vec(world, SLOTS, backend="serial", **options) as envs:
        actions = sample_actions(envs, STEPS)
        return play(envs, actions, 9), actions


@pytest.mark.parametrize(("world", "options"), SETTINGS.values(), ids=SETTINGS)
def test_steps_with_kills_at_random_moments_give_the_same(world, options):
    expected, actions = undisturbed(world, options)
    with (
        stretto.make_vec(world, SLOTS, **LAYOUT, **options) as envs,
        Killer(envs, seed=1) as killer,
    ):

        def strike(number: int) -> None:
            if number % EVERY == 0:
                killer.strike_soon()

        play(envs, actions, 9, before_step=strike).check_same(expected, "a run with kills and one without")
        assert envs.statistics().truncations == 0
        assert envs.statistics().restarts >= killer.kills // 2  # some hit one that was being replaced already
    assert killer.kills >= LEAST_KILLS


@pytest.mark.parametrize(("world", "options"), SENT_SETTINGS.values(), ids=SENT_SETTINGS)
def test_sends_with_kills_at_random_moments_give_the_same(world, options):
    expected, actions = undisturbed(world, options)
    with (
        stretto.make_vec(world, SLOTS, **LAYOUT, **options) as envs,
        Killer(envs, seed=2) as killer,
    ):
        envs.reset(seed=9)
        for number, action in enumerate(actions):
            if number % EVERY == 0:
                killer.strike_soon()
            envs.send(action)
            seen = 0
            while seen < SLOTS:
                part = envs.recv(ready=min(2, SLOTS - seen))
                seen += len(part.ids)
                _check_rows(part, expected.moments[number + 1])
        assert envs.statistics().truncations == 0
    assert killer.kills >= LEAST_KILLS


def _check_rows(part: Any, moment: Any) -> None:
    """Check that what was received of some slots is what a step of all gave them."""
    for row, slot in enumerate(part.ids):
        for name, got, wanted in zip(part._fields[:4], part[:4], moment[:4], strict=True):
            assert difference(np.asarray(got[row]), np.asarray(wanted[slot])) is None, (name, slot)
        assert difference(info_of(part.infos, row), info_of(moment[4], slot)) is None, ("infos", slot)
