"""Workers are killed at random moments, hundreds of times: nothing hangs, and nothing differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stretto
from stretto.envs.infos import info_of
from stretto.testing import difference, play, sample_actions
from tests.faults.killing import Killer
from tests.faults.worlds import OwnGenerator
from tests.worlds import Drift, GlobalDrift, TaskWorld

pytestmark = pytest.mark.timeout(90)

SLOTS = 6
STEPS = 64
EVERY = 4
"""Steps between two kills: 16 a run."""

LEAST_KILLS = 10
"""Some may miss. Two runs in each of 12 settings make 240 at least."""

SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {}),
    "Drift": (Drift, {"autoreset_mode": "SameStep"}),
    "GlobalDrift": (GlobalDrift, {}),
    "OwnGenerator": (OwnGenerator, {}),
    "TaskWorld": (TaskWorld, {"tasks": lambda slot, episode, stream: slot + 10 * episode + stream.random()}),
    "EpisodeSeeds": (Drift, {"episode_seeds": True}),
}
LAYOUT = {"backend": "process", "workers": 3, "isolate": True, "max_restarts": 50}

settings = pytest.mark.parametrize(("world", "options"), SETTINGS.values(), ids=SETTINGS)
transports = pytest.mark.parametrize("transport", ["shared", "message"])


def undisturbed(world: Any, options: dict[str, Any]) -> Any:
    with stretto.make_vec(world, SLOTS, backend="serial", **options) as envs:
        actions = sample_actions(envs, STEPS)
        return play(envs, actions, 9), actions


@settings
@transports
def test_steps_with_kills_at_random_moments_give_the_same(world, options, transport):
    expected, actions = undisturbed(world, options)
    with (
        stretto.make_vec(world, SLOTS, transport=transport, **LAYOUT, **options) as envs,
        Killer(envs, seed=1) as killer,
    ):

        def strike(number: int) -> None:
            if number % EVERY == 0:
                killer.strike_soon()

        play(envs, actions, 9, before_step=strike).check_same(expected, "a run with kills and one without")
        assert envs.statistics().truncations == 0
        assert envs.statistics().restarts >= killer.kills // 2  # some hit one that was being replaced already
    assert killer.kills >= LEAST_KILLS


@settings
@transports
def test_sends_with_kills_at_random_moments_give_the_same(world, options, transport):
    expected, actions = undisturbed(world, options)
    with (
        stretto.make_vec(world, SLOTS, transport=transport, **LAYOUT, **options) as envs,
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
