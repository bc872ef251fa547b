"""HeldOut: episodes and trials that training never sees, played now and then with the weights as they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from stretto.collection.collector import Collector
from stretto.collection.experience import Rollout
from stretto.collection.making import TrialSettings, worlds_and_trials
from stretto.collection.tasks import rollout_tasks
from stretto.collection.turn_stage import Turns
from stretto.collection.worlds import BlockWorlds
from stretto.core import AgentId, BlockPolicy
from stretto.envs.make import make_vec
from stretto.errors import StrettoError
from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.report.report import Report
from stretto.evaluation.statistics.averages import mean
from stretto.missions.mission import Mission
from stretto.policies.block_runner import BlockRunner
from stretto.policies.networks.team import TeamPolicy
from stretto.policies.spec import PolicySpec
from stretto.seeding.streams import SeedTree
from stretto.training.adaptation import BY_EPISODE, adaptation
from stretto.training.settings import EvaluationSettings, TrialsSettings

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


@dataclass(frozen=True)
class HeldOutTrials(HeldOut):
    """Trials of tasks that training never sees, played again and again: how well agents do in each episode of a trial.

    The trials are `settings.episodes`, of one held-out task after the other; `shown` says what agents see of a trial.
    """

    shown: TrialsSettings = field(default_factory=TrialsSettings)

    def play(self, steps: int, members: Sequence[BlockPolicy]) -> dict[str, Any]:
        """Let agents play; return means as of episodes, and the mean of each episode of a trial with its 95% interval."""
        agents: dict[AgentId, list[list[float]]] = {}
        for rollout in sorted(self._rollouts(members), key=attrgetter("index")):
            for agent, steps_of in rollout.agents.items():
                returns = [float(steps_of.rewards[episode].sum()) for episode in rollout.episodes]
                agents.setdefault(agent, []).append(returns)
        by_trial = np.mean(list(agents.values()), 0)
        return {
            "steps": steps,
            "episodes": by_trial.size,
            "return": float(by_trial.mean()),
            "deviation": float(by_trial.std(ddof=1)),
            "agents": {agent: float(np.mean(returns)) for agent, returns in agents.items()},
            BY_EPISODE: adaptation(by_trial),
        }

    def _rollouts(self, members: Sequence[BlockPolicy]) -> list[Rollout]:
        tasks, shown, count = self.tasks, self.shown, self.settings.episodes
        if isinstance(tasks, list):
            tasks = lambda index, _: self.tasks[index % len(self.tasks)]  # noqa: E731  one of two forms of the same
        seed = SeedTree(self.seed).child("held-out trials").seed()
        views = False, shown.boundaries, shown.rewards, False, shown.actions
        settings = TrialSettings(seed, shown.episodes, self.max_steps, self.turns, count, *views)
        make, trials = worlds_and_trials(self.mission, rollout_tasks(tasks), settings, {}, check_reuse=False)
        worlds = BlockWorlds(make_vec(make, count, backend="serial", copy=False))
        team = TeamPolicy(worlds.spec, members, greedy=self.settings.greedy)
        followed = dict.fromkeys(worlds.spec.agents, 0)
        with Collector(worlds, BlockRunner([team], count), followed, Turns(self.turns)) as collector:
            return list(collector.rollouts(count, trials))
