"""The same answer at any width, through either transport, and whoever steps."""

from __future__ import annotations

import minigrid  # noqa: F401  registers its worlds
import pytest

import stretto
from stretto.testing import play, sample_actions
from tests.worlds import Crowd, Drift, GlobalDrift, TaskWorld

WORLDS = {
    "own-draws": (Drift, {}),
    "global-draws": (GlobalDrift, {}),
    "episode-seeds": (Drift, {"episode_seeds": True}),
    "tasks": (TaskWorld, {"tasks": lambda slot, episode, stream: int(stream.integers(1000))}),
    "agents": (Crowd, {}),
    "CartPole-v1": ("CartPole-v1", {}),
    "MiniGrid-Empty-5x5-v0": ("MiniGrid-Empty-5x5-v0", {"env_kwargs": {"max_episode_steps": 10}}),
}
WIDTHS = [
    {"backend": "process", "workers": 1},
    {"backend": "process", "workers": 1, "isolate": True},
    {"backend": "process", "workers": 2},
    {"backend": "process", "workers": 3},
    {"backend": "process", "workers": 5, "isolate": True},
    {"backend": "process", "workers": 3, "transport": "message"},
    {"backend": "process", "workers": 5, "transport": "message", "isolate": True},
    {"backend": "thread", "workers": 3},
    {"backend": "auto"},
]


@pytest.mark.parametrize("name", WORLDS)
def test_the_answer_is_the_same_at_every_width(name):
    world, options = WORLDS[name]
    with stretto.make_vec(world, 7, backend="serial", **options) as envs:
        actions = sample_actions(envs, 40)
        expected = play(envs, actions, 11)
    assert expected.episodes > 0
    for width in WIDTHS:
        with stretto.make_vec(world, 7, **width, **options) as envs:
            play(envs, actions, 11).check_same(expected, f"serial and {width}")


def test_more_worlds_than_anybody_has_cores_are_shared_out():
    with stretto.make_vec("CartPole-v1", 1000, backend="process", workers=2) as envs:
        run = play(envs, sample_actions(envs, 12), 0)
        assert run.moments[-1][0].shape == (1000, 4)
        assert run.episodes > 0
