"""Stretto: reinforcement-learning worlds, policies and evaluations in parallel, with the same answer at any width."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode

    from stretto.budget import CpuBudget
    from stretto.collection.collect import collect, open_collection
    from stretto.collection.experience import Experience, Rollout, Segment
    from stretto.collection.opened import Collection
    from stretto.collection.rollouts import Rollouts, load_rollouts
    from stretto.collection.tasks import Curriculum, split_tasks
    from stretto.core import (
        AgentPolicy,
        BlockAnswer,
        BlockPolicy,
        MultiAgentPolicy,
        NextEpisode,
        PolicyStep,
        TurnEnd,
        TurnWorld,
        WorldSpec,
    )
    from stretto.envs.counters import Statistics
    from stretto.envs.make import make_vec
    from stretto.envs.multiagent import AgentBatch, MultiAgentReady, MultiAgentStep, MultiAgentVectorEnv
    from stretto.envs.vector import ReadyResult, StepResult, VectorEnv
    from stretto.errors import (
        ClosedError,
        FewerWorkers,
        GlobalsChanged,
        InvalidAction,
        InvalidLayout,
        InvalidOutput,
        InvalidSpace,
        LateImport,
        LauncherFailed,
        NodeLeftOut,
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
        WorldCarriesOver,
        WorldFailed,
        WorldHung,
    )
    from stretto.evaluation.evaluate import evaluate
    from stretto.evaluation.report.report import Report
    from stretto.evaluation.verify import verify
    from stretto.missions.mission import Mission
    from stretto.policies.spec import PolicySpec
    from stretto.seeding import SeedTree
    from stretto.sweeps.results import SweepReport
    from stretto.sweeps.sweep import sweep
    from stretto.training.report import TrainingReport
    from stretto.training.train import train
    from stretto.workers.cluster import Cluster, cluster

__version__ = "0.1.0"

__all__ = [
    "AgentBatch",
    "AgentPolicy",
    "AutoresetMode",
    "BlockAnswer",
    "BlockPolicy",
    "ClosedError",
    "Cluster",
    "Collection",
    "CpuBudget",
    "Curriculum",
    "Experience",
    "FewerWorkers",
    "GlobalsChanged",
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
    "NodeLeftOut",
    "Place",
    "PolicyFailed",
    "PolicyLost",
    "PolicyOverdue",
    "PolicySpec",
    "PolicyStep",
    "ReadyResult",
    "Report",
    "ResetNeeded",
    "ResourceError",
    "Rollout",
    "Rollouts",
    "SeedTree",
    "Segment",
    "SlotTruncated",
    "Statistics",
    "StepResult",
    "StrettoError",
    "StrettoWarning",
    "SweepReport",
    "TrainingReport",
    "TurnEnd",
    "TurnWorld",
    "UsageError",
    "VectorEnv",
    "WorkerDied",
    "WorldCarriesOver",
    "WorldFailed",
    "WorldHung",
    "WorldSpec",
    "cluster",
    "collect",
    "evaluate",
    "load_rollouts",
    "make_vec",
    "open_collection",
    "split_tasks",
    "sweep",
    "train",
    "verify",
]

_NAMES = {
    "gymnasium.vector": ["AutoresetMode"],
    "stretto.budget": ["CpuBudget"],
    "stretto.collection.collect": ["collect", "open_collection"],
    "stretto.collection.experience": ["Experience", "Rollout", "Segment"],
    "stretto.collection.opened": ["Collection"],
    "stretto.collection.rollouts": ["Rollouts", "load_rollouts"],
    "stretto.collection.tasks": ["Curriculum", "split_tasks"],
    "stretto.core": [
        "AgentPolicy",
        "BlockAnswer",
        "BlockPolicy",
        "MultiAgentPolicy",
        "NextEpisode",
        "PolicyStep",
        "TurnEnd",
        "TurnWorld",
        "WorldSpec",
    ],
    "stretto.envs.make": ["make_vec"],
    "stretto.envs.multiagent": ["AgentBatch", "MultiAgentReady", "MultiAgentStep", "MultiAgentVectorEnv"],
    "stretto.envs.counters": ["Statistics"],
    "stretto.envs.vector": ["ReadyResult", "StepResult", "VectorEnv"],
    "stretto.evaluation.evaluate": ["evaluate"],
    "stretto.evaluation.report.report": ["Report"],
    "stretto.evaluation.verify": ["verify"],
    "stretto.missions.mission": ["Mission"],
    "stretto.policies.spec": ["PolicySpec"],
    "stretto.seeding": ["SeedTree"],
    "stretto.sweeps.results": ["SweepReport"],
    "stretto.sweeps.sweep": ["sweep"],
    "stretto.training.report": ["TrainingReport"],
    "stretto.training.train": ["train"],
    "stretto.workers.cluster": ["Cluster", "cluster"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}  # all others are errors and warnings


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import what is public when it is first asked for: a command is there at once, and can be interrupted."""
    if name not in __all__:
        raise AttributeError(f"module 'stretto' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES.get(name, "stretto.errors")), name)
    return value
