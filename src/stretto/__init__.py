"""Stretto: reinforcement-learning worlds, policies and evaluations in parallel, with the same answer at any width."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from stretto.budget import CpuBudget
from stretto.core import AgentPolicy, MultiAgentPolicy, NextEpisode, TurnEnd, TurnWorld, WorldSpec
from stretto.envs.make import make_vec
from stretto.envs.multiagent import AgentBatch, MultiAgentReady, MultiAgentStep, MultiAgentVectorEnv
from stretto.envs.slots import Statistics
from stretto.envs.vector import ReadyResult, StepResult, VectorEnv
from stretto.errors import (
    ClosedError,
    FewerWorkers,
    InvalidAction,
    InvalidLayout,
    InvalidOutput,
    InvalidSpace,
    LateImport,
    LauncherFailed,
    Place,
    PolicyFailed,
    PolicyLost,
    PolicyOverdue,
    ResetNeeded,
    ResourceError,
    SlotTruncated,
    StrettoError,
    StrettoWarning,
    UsageError,
    WorkerDied,
    WorldFailed,
    WorldHung,
)
from stretto.seeding import SeedTree

if TYPE_CHECKING:
    from stretto.evaluation.evaluate import evaluate
    from stretto.evaluation.report import Report
    from stretto.evaluation.verify import verify
    from stretto.missions.mission import Mission
    from stretto.policies.spec import PolicySpec

__version__ = "0.1.0"

__all__ = [
    "AgentBatch",
    "AgentPolicy",
    "AutoresetMode",
    "ClosedError",
    "CpuBudget",
    "FewerWorkers",
    "InvalidAction",
    "InvalidLayout",
    "InvalidOutput",
    "InvalidSpace",
    "LateImport",
    "LauncherFailed",
    "Mission",
    "MultiAgentPolicy",
    "MultiAgentReady",
    "MultiAgentStep",
    "MultiAgentVectorEnv",
    "NextEpisode",
    "Place",
    "PolicyFailed",
    "PolicyLost",
    "PolicyOverdue",
    "PolicySpec",
    "ReadyResult",
    "Report",
    "ResetNeeded",
    "ResourceError",
    "SeedTree",
    "SlotTruncated",
    "Statistics",
    "StepResult",
    "StrettoError",
    "StrettoWarning",
    "TurnEnd",
    "TurnWorld",
    "UsageError",
    "VectorEnv",
    "WorkerDied",
    "WorldFailed",
    "WorldHung",
    "WorldSpec",
    "evaluate",
    "make_vec",
    "verify",
]

_LATER = {
    "Mission": "stretto.missions.mission",
    "PolicySpec": "stretto.policies.spec",
    "Report": "stretto.evaluation.report",
    "evaluate": "stretto.evaluation.evaluate",
    "verify": "stretto.evaluation.verify",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import what evaluations need when it is first asked for: whoever only steps environments need not wait for it."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'stretto' has no attribute {name!r}")
