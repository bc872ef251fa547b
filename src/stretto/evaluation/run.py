"""evaluate: play a plan in parallel, try again what died, and report."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stretto.budget import CpuBudget, default_budget
from stretto.errors import PolicyError, UsageError
from stretto.evaluation.journal import Journal
from stretto.evaluation.missions import Mission, find_missions
from stretto.evaluation.plan import Entry, Facts, Plan, Task
from stretto.evaluation.records import EpisodeFailure, EpisodeRecord
from stretto.evaluation.report import Report
from stretto.evaluation.service import EvaluationFactory, Look, PlayTask, Staging
from stretto.evaluation.statistics import Failed
from stretto.policies.spec import STRATEGIES, PolicySpec
from stretto.rollout import Played, Trouble
from stretto.workers.backends import PROCESS, SERIAL
from stretto.workers.pool import Answer, Pool

ATTEMPTS = 3
"""How often an episode is begun whose worker dies or hangs, before it counts as failed."""

SILENCE_SECONDS = 300.0
"""How long a worker may be at one step before it counts as hung, where there is no deadline for actions."""


def _ignore(_: EpisodeRecord) -> None:
    pass


@dataclass(slots=True)
class _Level:
    """How many processes play episodes, and how many cores each has for its agents."""

    workers: int
    cores: int


class Run:
    """A plan being played. Results are kept by key; the order in which they come changes nothing."""

    def __init__(self, plan: Plan, pool: Pool, on_episode: Callable[[EpisodeRecord], None]) -> None:
        self._plan, self._pool, self._on_episode = plan, pool, on_episode
        self.records: dict[tuple[int, int, int], EpisodeRecord] = {}
        self.moments: dict[tuple[int, int, int], list[dict[str, tuple[int, int, float]]]] = {}
        self._facts: dict[tuple[int, int], Facts] = {}
        self._attempts: dict[Task, int] = {}
        self._given: dict[int, Task] = {}

    def look(self) -> dict[tuple[int, int], Facts]:
        """Find out what the plan has to know of its missions and policies; errors here are the user's to see at once."""
        waiting = deque(self._plan.pairs())
        given: dict[int, tuple[int, int]] = {}
        while waiting or given:
            for worker in self._pool.idle:
                if waiting:
                    given[worker] = pair = waiting.popleft()
                    self._pool.give(worker, Look(*pair), SILENCE_SECONDS)
            for answer in self._pool.wait():
                pair = given.pop(answer.worker)
                if answer.error is not None:
                    raise answer.error
                self._facts[pair] = answer.value
        return self._facts

    def play(self, tasks: Iterable[Task], limit_seconds: float) -> None:
        """Play tasks until none is left."""
        waiting = deque(tasks)
        while waiting or self._given:
            for worker in self._pool.idle:
                if waiting:
                    task = self._given[worker] = waiting.popleft()
                    self._attempts[task] = self._attempts.get(task, 0) + 1
                    self._pool.give(worker, PlayTask(task, self._facts[task.mission, task.entry]), limit_seconds)
            for answer in self._pool.wait():
                waiting.extendleft(reversed(self._take(answer)))

    def _take(self, answer: Answer) -> list[Task]:
        """Take an answer in; return what has to be played (again)."""
        task = self._given.pop(answer.worker)
        if answer.error is None:
            return self._take_played(task, answer.value)
        if len(task.episodes) > 1:  # one of them is at fault: each for itself, in batches of the same shape
            return [Task(task.mission, task.entry, (episode,)) for episode in task.episodes]
        if answer.lost and self._attempts[task] < ATTEMPTS:
            return [task]
        error = answer.error
        policy, agent = (error.policy, error.agent) if isinstance(error, PolicyError) else (None, None)
        often = f" (tried {self._attempts[task]} times)" if answer.lost else ""
        message = f"{error}{often}".partition("\n")[0]
        text = "\n".join(getattr(error, "__notes__", [])) or str(error)
        self._keep(task, task.episodes[0], Played(trouble=Trouble(type(error).__name__, message, text, policy, agent)))
        return []

    def _take_played(self, task: Task, results: Sequence[Played]) -> list[Task]:
        if len(task.episodes) == 1 and results[0].trouble is not None and results[0].trouble.lost:
            if self._attempts[task] < ATTEMPTS:
                return [task]
            results[0].trouble.message += f" (tried {ATTEMPTS} times)"
        for episode, played in zip(task.episodes, results, strict=True):
            self._keep(task, episode, played)
        return []

    def _keep(self, task: Task, episode: int, played: Played) -> None:
        plan, entry = self._plan, self._plan.entries[task.entry]
        begun = plan.episode(task.mission, task.entry, episode, self._facts[task.mission, task.entry].agents)
        mission = plan.missions[task.mission]
        failure = None
        if played.trouble is not None:
            trouble = played.trouble
            failure = EpisodeFailure(
                kind=trouble.kind,
                message=trouble.message,
                policy=None if trouble.policy is None else entry.specs[trouble.policy].name,
                agent=trouble.agent,
                step=trouble.step,
                traceback=trouble.traceback,
                reproduce=reproduce(plan, mission, entry, episode),
            )
        record = EpisodeRecord(
            mission=mission.name,
            label=entry.label,
            episode=episode,
            seed=begun.seed,
            steps=played.steps,
            rewards=played.rewards if failure is None else {},
            policies={agent: entry.specs[policy].name for agent, policy in begun.policies.items()},
            statistics=played.statistics,
            overdue=played.overdue,
            failure=failure,
            timing={
                "seconds": played.world_seconds + played.policy_seconds,
                "world_seconds": played.world_seconds,
                "policy_seconds": played.policy_seconds,
                "attempts": self._attempts.get(task, 1),
                "strategy": played.strategy,
            },
        )
        self.records[task.mission, task.entry, episode] = record
        self.moments[task.mission, task.entry, episode] = played.moments
        self._on_episode(record)


def reproduce(plan: Plan, mission: Mission, entry: Entry, episode: int) -> str:
    """Return a command line that plays one episode again, alone and in one process."""
    parts = ["stretto", "eval", "-m", mission.name.partition("+")[0]]
    for variant in mission.name.split("+")[1:]:
        parts += ["-v", variant]
    for option, key in (("--cogs", "cogs"), ("--map-seed", "map_seed")):
        if key in mission.details:
            parts += [option, str(mission.details[key])]
    for spec in entry.specs:
        parts += ["-p", spec.name]
    parts += ["--mix"] if len(entry.specs) > 1 else []
    parts += ["--seed", str(plan.seed), "--only", str(episode), "--jobs", "0"]
    parts += ["--steps", str(plan.max_steps)] if plan.max_steps is not None else []
    return shlex.join(parts)


def entries_of(policies: Sequence[Any], *, mix: bool) -> tuple[Entry, ...]:
    """Return what is compared: each policy by itself, or all of them together."""
    specs = [PolicySpec.of(policy) for policy in policies]
    if mix:
        return (Entry(" + ".join(spec.name for spec in specs), tuple(specs)),)
    return tuple(Entry(spec.name, (spec,)) for spec in specs)


def levels(jobs: int, tasks: int, agents: int, *, parallel_policy: bool) -> _Level:
    """Split cores between episodes and agents: episodes first, or, with `parallel_policy`, agents first."""
    if parallel_policy:
        cores = max(1, min(jobs, agents))
        return _Level(max(1, min(jobs // cores, tasks)), cores)
    workers = max(1, min(jobs, tasks))
    return _Level(workers, max(1, jobs // workers))


def evaluate(  # noqa: PLR0913  every choice has a name and a default here
    missions: str | Mission | Sequence[str | Mission],
    policies: Any,
    *,
    episodes: int = 10,
    steps: int | None = None,
    seed: int = 0,
    cogs: int | None = None,
    variants: Sequence[str] = (),
    map_seed: int | None = None,
    mix: bool = False,
    only: Iterable[int] | None = None,
    jobs: int | None = None,
    parallel_policy: bool = False,
    strategy: str = "adaptive",
    action_timeout_ms: float | None = None,
    overage_ms: float = 0.0,
    failed: Failed = "exclude",
    reverse: bool = False,
    budget: CpuBudget | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_begin: Callable[[], None] = lambda: None,
    on_episode: Callable[[EpisodeRecord], None] = _ignore,
) -> Report:
    """Play every policy on every mission, the same episodes for each, and return records and statistics.

    Args:
        missions: names, patterns such as "foundry_*", "gym:CartPole-v1", "pz:mpe2.simple_spread_v3", "file.py:make".
        policies: names, "pkg.module:Class", classes, or plain functions from observations to actions.
        episodes: how many of each mission.
        steps: the most steps of an episode; by default the mission's own limit.
        seed: of everything random.
        cogs: how many agents our games have.
        variants: named changes of our games.
        map_seed: which map our games have.
        mix: let all policies play together, in proportion, instead of comparing them.
        only: play just these episodes.
        jobs: how many processes compute: by default one a core; 0 is none, everything happens in the caller.
        parallel_policy: give cores to agents before giving them to episodes.
        strategy: where agents choose their actions; this never changes a result.
        action_timeout_ms: the most that an agent may compute for a step.
        overage_ms: by how much it may exceed that in an episode, all in all.
        failed: what a failed episode counts: "exclude" it for all policies, or as the "worst" seen.
        reverse: play the tasks in reverse order; this never changes a result.
        budget: the cores to use; by default those of this process.
        out: a folder for the records, as they come, and for the report at the end.
        resume: go on with what was begun in that folder.
        on_begin: is called when all is well and nothing is played yet.
        on_episode: hears of every episode, in the order in which they end.

    Raises:
        EvaluationInterrupted: at Ctrl-C, with the report of what is finished.
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if jobs is not None and jobs < 0:
        raise UsageError(f"jobs must be at least 0, got {jobs}; 0 plays everything in the caller")
    several = policies if isinstance(policies, (list, tuple)) else [policies]
    plan = Plan(_found(missions, cogs, variants, map_seed), entries_of(several, mix=mix), episodes, seed, steps)
    free = (budget or default_budget()).free if jobs is None else jobs
    chosen = set(range(episodes)) if only is None else {int(one) for one in only}
    count = len(plan.missions) * len(plan.entries) * len(chosen)
    level = levels(free, count, 1 << 30 if cogs is None else cogs, parallel_policy=parallel_policy)
    staging = Staging(
        strategy=strategy,
        cores=level.cores,
        action_seconds=None if action_timeout_ms is None else action_timeout_ms / 1000,
        overage_seconds=overage_ms / 1000,
    )
    pools = partial(Pool, PROCESS if free else SERIAL, [EvaluationFactory(plan, staging)] * level.workers)
    lease = (budget or default_budget()).lease(max(1, free))
    described = {**about(plan), "failed": failed}
    with ExitStack() as stack:
        stack.callback(lease.release)
        journal = stack.enter_context(Journal(out, described, resume=resume)) if out is not None else None
        on_begin()
        records = _play_all(plan, pools, journal, chosen, on_episode, reverse=reverse)
        names = [mission.name for mission in plan.missions]
        labels = [entry.label for entry in plan.entries]
        report = Report.of(records.kept, described, failed=failed, seed=seed, missions=names, labels=labels)
        if records.interrupted:
            raise EvaluationInterrupted(report)
        if journal is not None:
            report.save(journal.folder)
            journal.finish()
    return report


class EvaluationInterrupted(KeyboardInterrupt):
    """Ctrl-C during an evaluation; `report` is about what was finished."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


@dataclass(slots=True)
class _Kept:
    kept: list[EpisodeRecord]
    interrupted: bool = False


def _play_all(
    plan: Plan,
    pools: Callable[[], Pool],
    journal: Journal | None,
    chosen: set[int],
    on_episode: Callable[[EpisodeRecord], None],
    *,
    reverse: bool,
) -> _Kept:
    """Play all of the plan that is chosen and not in the journal yet; return the records of everything."""
    before = {record.key: record for record in journal.records} if journal is not None else {}
    keys = {
        (plan.missions[m].name, plan.entries[e].label, n): (m, e, n)
        for m, e in plan.pairs()
        for n in range(plan.episodes)
    }
    for record in before.values():
        on_episode(record)

    def keep(record: EpisodeRecord) -> None:
        if record.key not in before:
            if journal is not None:
                journal.add(record)
            on_episode(record)

    run: Run | None = None
    interrupted = False
    try:
        with pools() as pool:
            run = Run(plan, pool, keep)
            facts = run.look()
            done = [where for key, where in keys.items() if key in before or where[2] not in chosen]
            tasks = plan.tasks(facts, done)
            tasks = [Task(t.mission, t.entry, tuple(n for n in t.episodes if n in chosen)) for t in tasks]
            run.play(reversed(tasks) if reverse else tasks, SILENCE_SECONDS)
    except KeyboardInterrupt:
        interrupted = True
    found = {record.key: record for record in (run.records.values() if run is not None else ())}
    found |= before
    return _Kept([found[key] for key in keys if key in found], interrupted)


def _found(
    missions: str | Mission | Sequence[str | Mission], cogs: int | None, variants: Sequence[str], map_seed: int | None
) -> tuple[Mission, ...]:
    found: list[Mission] = []
    for one in [missions] if isinstance(missions, (str, Mission)) else missions:
        if isinstance(one, Mission):
            found.append(one)
        else:
            found += find_missions([one], cogs=cogs, variants=variants, map_seed=map_seed)
    return tuple(found)


def about(plan: Plan) -> dict[str, Any]:
    """Describe a plan in plain values."""
    return {
        "missions": [mission.name for mission in plan.missions],
        "worlds": {mission.name: dict(mission.details) for mission in plan.missions if mission.details},
        "policies": [entry.label for entry in plan.entries],
        "episodes": plan.episodes,
        "seed": plan.seed,
        "steps": plan.max_steps,
    }
