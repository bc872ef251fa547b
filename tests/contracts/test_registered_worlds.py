"""Every world that Gymnasium itself registers runs, and passes the checks of its first steps."""

from __future__ import annotations

import functools
import warnings

import gymnasium
import pytest

import stretto
from stretto.testing import play, sample_actions

IDS = [name for name, spec in gymnasium.registry.items() if str(spec.entry_point or "").startswith("gymnasium.")]


@functools.cache
def why_it_cannot_be_built(name):
    """Build it as anybody would; return the reason if what it needs is not installed or not supported any more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            gymnasium.make(name).close()
        except (gymnasium.error.DependencyNotInstalled, ImportError, gymnasium.error.DeprecatedEnv) as reason:
            return str(reason).splitlines()[0]
    return None


@pytest.mark.parametrize("name", IDS)
@pytest.mark.filterwarnings("ignore")  # what an old world warns of is not ours to judge
def test_it_passes_the_checks(name):
    reason = why_it_cannot_be_built(name)
    if reason is not None:
        pytest.skip(reason)
    with stretto.make_vec(name, 2, backend="serial", checks="always") as envs:
        play(envs, sample_actions(envs, 12), 0)


def test_most_of_them_can_be_built_here():
    assert len(IDS) > 40
    assert sum(why_it_cannot_be_built(name) is None for name in IDS) > len(IDS) / 2
