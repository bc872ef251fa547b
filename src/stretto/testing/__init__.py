"""The contracts as functions: what our tests call, and what you call for a world or a backend of your own.

Each `check_...` returns nothing if the contract holds, and raises `ContractBroken` with a plain sentence if not.
"""

from stretto.testing.backends import check_env_backend, check_equals_gymnasium
from stretto.testing.runs import Run, play, sample_actions
from stretto.testing.values import ContractBroken, check_same, difference
from stretto.testing.workers import check_worker
from stretto.testing.worlds import check_env

__all__ = [
    "ContractBroken",
    "Run",
    "check_env",
    "check_env_backend",
    "check_equals_gymnasium",
    "check_same",
    "check_worker",
    "difference",
    "play",
    "sample_actions",
]
