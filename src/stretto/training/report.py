"""What came of a run: its agents, its figures, and its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.core import AgentId
from stretto.evaluation.report.wording import counted, short_number
from stretto.policies.spec import PolicySpec
from stretto.training.adaptation import BY_EPISODE, adaptation_text
from stretto.training.settings import Config


@dataclass(frozen=True)
class AgentResult:
    """What came of an agent: its mean return at the end, its updates, and a sha256 of its weights.

    `stopped` says in which update and why it learned no more; `None`: it learned to the end.
    """

    mean_return: float | None
    updates: int
    weights: str
    stopped: str | None = None

    def summary(self) -> dict[str, Any]:
        """Return what `summary.json` holds of it."""
        stopped = {} if self.stopped is None else {"stopped": self.stopped}
        return {"return": self.mean_return, "updates": self.updates, "weights": self.weights, **stopped}


@dataclass(frozen=True)
class TrainingReport:
    """A run that is over.

    `policy` is what agents have learned: `evaluate` and `collect` take it. `history` has the records of intervals that
    `metrics.jsonl` has: all, or about 256 that are evenly spread. `evaluations` are those on held-out episodes, the last one
    at the end.
    """

    mission: str
    seed: int
    config: Config
    steps: int
    agents: Mapping[AgentId, AgentResult]
    policy: PolicySpec = field(repr=False)
    history: Sequence[Mapping[str, Any]] = field(repr=False)
    evaluations: Sequence[Mapping[str, Any]] = field(repr=False)
    folder: Path | None = None

    def __str__(self) -> str:
        lines = [f"{self.mission}, {self.config.learner}, seed {self.seed}: {counted(self.steps, 'step')}"]
        if self.evaluations:
            last = self.evaluations[-1]
            lines.append(f"mean return of {last['episodes']} held-out episodes: {short_number(last['return'])}")
            lines += [adaptation_text(last)] if BY_EPISODE in last else []
        for agent, one in self.agents.items():
            stopped = "" if one.stopped is None else f", stopped in {one.stopped}"
            lines.append(f"{agent}: return {short_number(one.mean_return)}, {counted(one.updates, 'update')}{stopped}")
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """Return what `summary.json` holds; all that the clock says is under `timing`."""
        return {
            "mission": self.mission,
            "learner": self.config.learner,
            "seed": self.seed,
            "steps": self.steps,
            "agents": {agent: one.summary() for agent, one in self.agents.items()},
            **({"evaluation": dict(self.evaluations[-1])} if self.evaluations else {}),
            "timing": dict(self.history[-1]["timing"]) if self.history else {},
        }

    def export_onnx(self, agent: AgentId, path: str | Path) -> None:
        """Write what an agent takes for its best action as an ONNX file: see `policies.networks.onnx`."""
        from stretto.policies.networks.onnx import export_onnx

        members = self.policy.kwargs["members"]
        export_onnx(next(member for member in members if agent in member.world.agents), agent, path)


def stopped_agents(summary: Mapping[str, Any]) -> dict[AgentId, str]:
    """Return the agents of a run's summary that were stopped, and in which update and why."""
    return {agent: one["stopped"] for agent, one in summary["agents"].items() if "stopped" in one}


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run; `report` is about what was learned until then."""

    def __init__(self, report: TrainingReport) -> None:
        super().__init__()
        self.report = report
