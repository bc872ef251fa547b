"""HeldOut: episodes that training never sees, played now and then with the weights as they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto.core import AgentId, BlockPolicy
from stretto.errors import StrettoError
from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.report.report import Report
from stretto.evaluation.statistics.averages import mean
from stretto.missions.mission import Mission
from stretto.policies.networks.team import TeamPolicy
from stretto.policies.spec import PolicySpec
from stretto.training.settings import EvaluationSettings

LABEL = "learned"


def learned_policy(members: Sequence[BlockPolicy], *, greedy: bool = True) -> PolicySpec:
    """Return what blocks of agents have learned as a policy that others play."""
    return PolicySpec(LABEL, TeamPolicy, {"members": list(members), "greedy": greedy})


@dataclass(frozen=True)
class HeldOut:
    """An evaluation that is played again and again, on the same episodes.

    They are those of `evaluate` with the same seed. Their seeds come from streams that training does not draw from.
    """

    mission: Mission
    settings: EvaluationSettings
    seed: int
    max_steps: int | None
    turns: str
    tasks: Any = None

    def due(self, before: int, steps: int, *, over: bool) -> bool:
        """Whether a run that had done `before` steps, and now has done `steps` or is `over`, is to be evaluated."""
        every = self.settings.every
        return every is not None and (steps // every > before // every or over)

    def play(self, steps: int, members: Sequence[BlockPolicy]) -> dict[str, Any]:
        """Let agents play; return the mean return of all agents and of each, and how it deviates between episodes.

        Raises:
            StrettoError: if an episode fails.
        """
        report = evaluate(
            self.mission,
            learned_policy(members, greedy=self.settings.greedy),
            episodes=self.settings.episodes,
            seed=self.seed,
            steps=self.max_steps,
            turns=self.turns,
            tasks=self.tasks,
            jobs=0,
        )
        failed = [record.failure for record in report.records if record.failure is not None]
        if failed:
            raise StrettoError(f"a held-out episode failed after {steps:,} steps of training: {failed[0].message}")
        return {"steps": steps, "episodes": len(report.records), **_means(report)}


def _means(report: Report) -> dict[str, Any]:
    agents: dict[AgentId, list[float]] = {}
    for record in report.records:
        for agent, reward in record.rewards.items():
            agents.setdefault(agent, []).append(reward)
    returns = [record.reward for record in report.records]
    return {
        "return": mean(returns),
        "deviation": statistics.stdev(returns) if len(returns) > 1 else 0.0,
        "agents": {agent: mean(values) for agent, values in agents.items()},
    }
