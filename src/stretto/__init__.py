"""Stretto: reinforcement-learning worlds in parallel, with the same answer at any width."""

from gymnasium.vector import AutoresetMode

from stretto.budget import CpuBudget
from stretto.envs.make import make_vec
from stretto.envs.multiagent import AgentBatch, MultiAgentReady, MultiAgentStep, MultiAgentVectorEnv
from stretto.envs.tally import Statistics
from stretto.envs.vector import ReadyResult, StepResult, VectorEnv
from stretto.errors import (
    ClosedError,
    FewerWorkers,
    InvalidAction,
    InvalidLayout,
    InvalidOutput,
    InvalidSpace,
    LauncherFailed,
    Place,
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

__version__ = "0.1.0"

__all__ = [
    "AgentBatch",
    "AutoresetMode",
    "ClosedError",
    "CpuBudget",
    "FewerWorkers",
    "InvalidAction",
    "InvalidLayout",
    "InvalidOutput",
    "InvalidSpace",
    "LauncherFailed",
    "MultiAgentReady",
    "MultiAgentStep",
    "MultiAgentVectorEnv",
    "Place",
    "ReadyResult",
    "ResetNeeded",
    "ResourceError",
    "SeedTree",
    "SlotTruncated",
    "Statistics",
    "StepResult",
    "StrettoError",
    "StrettoWarning",
    "UsageError",
    "VectorEnv",
    "WorkerDied",
    "WorldFailed",
    "WorldHung",
    "make_vec",
]
