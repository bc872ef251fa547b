"""What plays episodes inside a worker: worlds and policies are made once, and kept for the tasks that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stretto.adapters.episodes import EpisodeWorld, as_episodes
from stretto.core import WorldSpec
from stretto.evaluation.missions import Mission
from stretto.evaluation.plan import Facts, Plan, Task, rows
from stretto.policies.builtin import Random
from stretto.policies.runners import Runner
from stretto.policies.spec import load_policy, reset_policy
from stretto.policies.strategies import make_runner
from stretto.policies.troupe import Casting
from stretto.rollout import Deadline, Played, play
from stretto.seeding import PrivateGenerators, SeedTree
from stretto.workers.base import Port, Start
from stretto.workers.control import BEAT

_LOOK_STEPS = 3
"""How many steps of a throwaway episode are watched for draws from global generators."""


@dataclass(frozen=True, slots=True)
class Look:
    """Message: say what a plan must know of a mission with an entry."""

    mission: int
    entry: int


@dataclass(frozen=True, slots=True)
class PlayTask:
    """Message: play the episodes of a task."""

    task: Task
    facts: Facts


@dataclass(frozen=True, slots=True)
class Staging:
    """How a worker computes what a plan says: this never changes a result."""

    strategy: str = "sequential"
    cores: int = 1
    action_seconds: float | None = None
    overage_seconds: float = 0.0
    watch: bool = False


@dataclass(frozen=True, slots=True)
class EvaluationFactory:
    """Builds the service inside a worker."""

    plan: Plan
    staging: Staging

    def __call__(self, port: Port) -> EvaluationService:
        return EvaluationService(port, self.plan, self.staging)


class EvaluationService:
    """Plays tasks of a plan."""

    def __init__(self, port: Port, plan: Plan, staging: Staging) -> None:
        self._port, self._plan, self._staging = port, plan, staging
        self._worlds: dict[int, list[EpisodeWorld]] = {}
        self._runners: dict[tuple[int, int], Runner] = {}

    def handle(self, message: Any) -> object:
        match message:
            case Look(mission, entry):
                return self._look(mission, entry)
            case PlayTask(task, facts):
                return self._play(task, facts)
            case Start():
                return None
            case _:
                raise AssertionError(f"no such message: {message!r}")

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def _beat(self, _: int = 0) -> None:
        self._port.words[BEAT] += 1

    # ---- looking ----

    def _look(self, mission: int, entry: int) -> Facts:
        (world,) = self._some_worlds(mission, 1)
        spec = world.spec()
        specs = self._plan.entries[entry].specs
        found = []
        for one in specs:
            guard = PrivateGenerators(SeedTree(0).child("look"), probation=1 << 62)
            batches = guard.run(self._try_out, one, spec, world)
            found.append((frozenset(guard.drawn), batches))
            self._beat()
        # A batch draws for many agents at once, so that private generators could not be any one agent's.
        draws = tuple(frozenset() if batches else drawn for drawn, batches in found)
        return Facts(spec.agents, draws, tuple(batches for _, batches in found))

    def _try_out(self, policy: Any, spec: WorldSpec, world: EpisodeWorld) -> bool:
        """Let one agent follow a policy for a moment, in an episode that nobody counts."""
        loaded = load_policy(policy, spec)
        others = Random(spec)
        players: dict[str, Any] = {}
        observations = world.reset(0)
        for _ in range(_LOOK_STEPS):
            if not observations:
                break
            actions = {}
            for i, (agent, observation) in enumerate(observations.items()):
                if agent not in players:
                    players[agent] = (loaded if i == 0 else others).agent_policy(agent)
                    reset_policy(players[agent], SeedTree(0).child("look", agent).generator())
                actions[agent] = players[agent].step(observation)
            observations = world.step(actions).observations
        return callable(getattr(loaded, "step_batch", None))

    # ---- playing ----

    def _play(self, task: Task, facts: Facts) -> list[Played]:
        plan, mission = self._plan, self._plan.missions[task.mission]
        runner = self._runner(task, facts)
        worlds = self._some_worlds(task.mission, len(task.episodes))
        episodes = [plan.episode(task.mission, task.entry, number, facts.agents) for number in task.episodes]
        played = play(
            worlds,
            runner,
            episodes,
            max_steps=plan.max_steps if plan.max_steps is not None else mission.max_steps,
            deadline=self._deadline(mission),
            watch=self._staging.watch,
            on_step=self._beat,
        )
        for one in played:
            one.strategy = getattr(runner, "reason", self._staging.strategy)
        if any(one.trouble is not None for one in played):
            self._forget_worlds(task.mission)  # nobody knows what state they are in
        return played

    def _deadline(self, mission: Mission) -> Deadline:
        staging = self._staging
        return Deadline(
            staging.action_seconds, staging.overage_seconds, mission.default_action, mission.has_default_action
        )

    def _some_worlds(self, mission: int, count: int) -> list[EpisodeWorld]:
        worlds = self._worlds.setdefault(mission, [])
        while len(worlds) < count:
            tree = SeedTree(0).child("construct", len(worlds))
            worlds.append(as_episodes(PrivateGenerators(tree).run(self._plan.missions[mission].make)))
            self._beat()
        return worlds[:count]

    def _forget_worlds(self, mission: int) -> None:
        for world in self._worlds.pop(mission, []):
            world.close()

    def _runner(self, task: Task, facts: Facts) -> Runner:
        key = (task.mission, task.entry)
        if key not in self._runners:
            for old in list(self._runners):  # tasks come mission by mission: what is done is not needed again
                self._runners.pop(old).close()
            (world,) = self._some_worlds(task.mission, 1)
            entry = self._plan.entries[task.entry]
            castings = [Casting(spec, facts.draws[i], rows(facts, i)) for i, spec in enumerate(entry.specs)]
            strategies = [spec.strategy or self._staging.strategy for spec in entry.specs]
            self._runners[key] = make_runner(castings, world.spec(), strategies, self._staging.cores)
        return self._runners[key]

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()
        for mission in list(self._worlds):
            self._forget_worlds(mission)
