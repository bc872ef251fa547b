"""Which learners there are by name, and where each is. One that no run asks for is not imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stretto.errors import UsageError
from stretto.importing import imported
from stretto.registry import near_or_all
from stretto.training.learners.own_settings import is_own

if TYPE_CHECKING:
    from stretto.training.learners.base import LearnerBlock

LEARNERS = {
    "ppo": "stretto.training.learners.ppo:Ppo",
    "dqn": "stretto.training.learners.dqn:Dqn",
    "bc": "stretto.training.learners.bc:Cloning",
    "sac": "stretto.training.learners.sac:Sac",
}

FROM_RECORDINGS = ("bc", "dqn", "sac")
"""Those that learn from what others did; of these, only `bc` cannot learn from what it does itself."""


def learner_named(name: str) -> Callable[[LearnerBlock, Any], Any]:
    """Return what makes a learner by its name, given a block of agents and its settings."""
    if is_own(name):
        from stretto.training.learners.own import OwnLearners

        where, _, inside = name.rpartition(":")
        return partial(OwnLearners, imported(where, inside, "learner"))
    if name not in LEARNERS:
        raise UsageError(
            f"learner must be one of {', '.join(LEARNERS)}, or file.py:NAME, got {name!r}{near_or_all(name, LEARNERS)}"
        )
    module, _, inside = LEARNERS[name].partition(":")
    found: Callable[[LearnerBlock, Any], Any] = getattr(import_module(module), inside)
    return found
