"""evaluate: play a plan in parallel, try again what died, and report."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stretto.budget import CpuBudget, default_budget
from stretto.core import SIMULTANEOUS, turns_of
from stretto.errors import TurnsInOrder, UsageError, user_stacklevel
from stretto.evaluation.execution import Execution, check_where, jobs_elsewhere, jobs_within, where
from stretto.evaluation.journal import Journal
from stretto.evaluation.plan import HANG_SECONDS, Facts, Plan, PlaySettings, Task, entries_of, limits_of
from stretto.evaluation.playing.episode_worker import EpisodeWorkerFactory
from stretto.evaluation.playing.scheduler import Scheduler
from stretto.evaluation.progress import Progress
from stretto.evaluation.records import EpisodeRecord
from stretto.evaluation.report.report import Report
from stretto.evaluation.statistics.scales import references_of
from stretto.evaluation.statistics.summary import Failed
from stretto.identity.record import plain_settings
from stretto.missions.mission import program_of
from stretto.missions.resolve import find_missions
from stretto.missions.tasks import Tasks, describe_tasks
from stretto.policies.spec import DEFAULT_STRATEGY, find_policies
from stretto.policies.torch_settings import check_device, torch_as_before
from stretto.run_folder import IDENTITY, TIMING, identity_of, invoked_now
from stretto.run_trace import trace_path, traced
from stretto.workers.backends import PROCESS
from stretto.workers.cluster import Cluster, opened
from stretto.workers.mail import unsendable


def evaluate(  # noqa: PLR0913  every choice has a name and a default here
    missions: Any,
    policies: Any,
    *,
    episodes: int = 10,
    steps: int | None = None,
    seed: int = 0,
    episode_seeds: Sequence[int] | None = None,
    tasks: Tasks | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    cogs: int | None = None,
    variants: Sequence[str] = (),
    map_seed: int | None = None,
    mix: bool = False,
    turns: str = SIMULTANEOUS,
    only: Iterable[int] | None = None,
    jobs: int | None = None,
    parallel_policy: bool = False,
    strategy: str = DEFAULT_STRATEGY,
    action_timeout_ms: float | None = None,
    overage_ms: float = 0.0,
    hang_seconds: float | None = HANG_SECONDS,
    native_threads: int = 1,
    device: str | None = None,
    deterministic: bool = False,
    failed: Failed = "exclude",
    normalize: str | None = None,
    reverse: bool = False,
    budget: CpuBudget | None = None,
    cluster: Cluster | str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    replays: bool | str | Path = False,
    accept_changes: bool = False,
    trace: str | Path | bool = False,
    command: str | None = None,
    on_begin: Callable[[], None] = lambda: None,
    on_episode: Callable[[EpisodeRecord], None] = lambda _: None,
    progress: Progress | None = None,
) -> Report:
    """Play every policy on every mission, the same episodes for each, and return records and statistics.

    Args:
        missions: what `make_vec` takes, one or a list: names, patterns such as "foundry_*", "gym:CartPole-v1",
            "pz:mpe2.simple_spread_v3", "file.py:make", classes and functions that make a world.
        policies: names, "pkg.module:Class", classes, or plain functions from observations to actions.
        episodes: how many of each mission.
        steps: the most steps of an episode; by default the mission's own limit.
        seed: of everything random.
        episode_seeds: one seed for each episode, in place of those that follow from `seed`; there are as many episodes.
        tasks: as in `make_vec`: `(slot, episode, stream) -> task` (every slot is 0), or a sequence to draw from; a world's
            reset has it in `options={"task": task}`. It does not depend on the policy.
        env_kwargs: passed to whatever makes the worlds.
        cogs, map_seed: two of these that our games take: how many agents there are, and which map it is.
        variants: names of changes that a game knows, or that a function with a parameter `variants` is given.
        mix: let all policies play together, in proportion, instead of comparing them.
        turns: how a `TurnWorld` is played: "simultaneous" (all observe, and then all act, in order) or "sequential" (each
            observes after the one before has acted: a step lets one agent act). "speculative" has the result of
            "sequential": all choose when the turn begins, and choose again if they see something else by then. "auto" is
            one of these two, whichever is faster.
        only: play just these episodes.
        jobs: how many processes compute: by default one a core; 0 is none, everything happens in the caller.
        parallel_policy: give cores to agents before giving them to episodes.
        strategy: where agents choose their actions; this never changes a result.
        action_timeout_ms: the most that an agent may compute for a step.
        overage_ms: by how much it may exceed that in an episode, all in all.
        hang_seconds: how long a step of the world, or of all agents together, may take. Then it counts as hung, and its
            process is ended; `None`: for ever. What happens in the caller itself (`jobs=0`) cannot be ended.
        native_threads: how many threads libraries such as BLAS and torch use for a computation, wherever it is done. A
            process then takes so many cores. Another number may change the last bits of a result.
        device: what torch computes on ("cpu", "cuda", "cuda:1", "mps"), for policies whose constructor takes `device`.
        deterministic: ask torch for deterministic algorithms in every process that computes; it raises where it has none,
            and its numbers may still differ between devices, CPUs and versions.
        failed: what a failed episode counts: "exclude" it for all policies, or as the "worst" seen.
        normalize: "LOW:HIGH", the names of two of the policies: the mean rewards of these are scores of 0 and 1 on each
            mission, and scores are what missions have in common.
        reverse: play the tasks in reverse order; this never changes a result.
        budget: the cores to use; by default those of this process, or of the cluster.
        cluster: play on the nodes of a Ray cluster: one that `stretto.cluster` has opened, or its address, "auto" or
            "local". Results are the same; nodes that give other numbers than most are left out, with a warning.
        out: a folder for the records, as they come, and for the report at the end.
        resume: go on with what was begun in that folder, or, with more `episodes`, with what is finished there. It is
            refused if code, weights or versions have changed since.
        accept_changes: go on all the same; the report then says what has changed, and after how many episodes.
        replays: let worlds that have `save_replay(path)` write episodes into the folder's `replays`, or into this folder.
        trace: a file for the spans of all processes, to be opened in Perfetto; `True`: trace.json in the folder of `out`.
        command: the command line that asked for this, for the report to show.
        on_begin: is called when all is well and nothing is played yet.
        on_episode: hears of every episode, in the order in which they end.
        progress: is told how far it is, for others to look at meanwhile.

    Raises:
        EvaluationInterrupted: at Ctrl-C, with the report of what is finished.
    """
    check_where(strategy, jobs, cluster)
    limits = limits_of(action_timeout_ms, overage_ms, hang_seconds)
    settings = PlaySettings(strategy, limits, replays=_replay_folder(out, replays) if replays else None)
    if device is not None and cluster is None:  # its nodes may have what this machine has not
        check_device(device)
    path = trace_path(trace, out)
    named = find_missions(missions, env_kwargs=env_kwargs, variants=variants, cogs=cogs, map_seed=map_seed)
    several = [
        replace(spec, device=device or spec.device, deterministic=deterministic or spec.deterministic)
        for spec in find_policies(policies, program_of(named))
    ]
    entries = entries_of(several, mix=mix)
    seeds = None if episode_seeds is None else tuple(episode_seeds)
    episodes = episodes if seeds is None else len(seeds)
    plan = Plan(
        tuple(mission.lasting(steps) for mission in named),
        entries,
        episodes,
        seed,
        steps,
        turns,
        native_threads,
        seeds,
        tasks,
    )
    references = None if normalize is None else references_of(normalize, [entry.label for entry in entries])
    chosen = _chosen(only, plan)
    times = {"action_timeout_ms": action_timeout_ms, "overage_ms": overage_ms, "hang_seconds": hang_seconds}
    scale = {"normalize": normalize} if normalize else {}
    described = {**about(plan), **times, "failed": failed, **scale, TIMING: invoked_now(command)}
    began = time.perf_counter()
    with ExitStack() as stack:
        nodes = stack.enter_context(opened(cluster))
        cores = budget or (default_budget() if nodes is None else nodes.budget)
        free = jobs_within(cores, jobs, native_threads)
        execution = Execution(
            settings, jobs_elsewhere(EpisodeWorkerFactory(plan, settings), free, nodes), parallel_policy, reverse, nodes
        )
        stack.callback(cores.lease(max(1, free) * native_threads).release)
        journal = None
        if out is not None:
            journal = stack.enter_context(Journal(out, described, resume=resume, accept_changes=accept_changes))
        stack.enter_context(traced(path, "evaluation"))
        stack.enter_context(torch_as_before())
        records = _play_all(plan, execution, journal, chosen, _Heard(on_begin, on_episode, progress or Progress()))
        if journal is not None and journal.finished and not (records.more or records.interrupted):
            return Report.load(journal.folder)
        shown = described if journal is None else journal.plan
        measured = {
            "seconds": round(time.perf_counter() - began, 3),
            "processes": records.workers,
            **where(records.kept),
        }
        shown = {**shown, **records.batches_told, TIMING: {**shown.get(TIMING, {}), **measured}}
        report = Report.of(
            records.kept,
            shown,
            failed=failed,
            seed=seed,
            missions=described["missions"],
            labels=described["policies"],
            normalize=references,
        )
        if records.interrupted:
            raise EvaluationInterrupted(report)
        if journal is not None:
            journal.finish(report)
    return report


def _chosen(only: Iterable[int] | None, plan: Plan) -> set[int]:
    """Return the episodes to be played."""
    chosen = set(range(plan.episodes)) if only is None else {int(one) for one in only}
    if plan.episode_seeds is not None and max(chosen, default=0) >= plan.episodes:
        raise UsageError(f"each episode needs one of episode_seeds, got {plan.episodes} and episode {max(chosen)}")
    return chosen


def _replay_folder(out: str | Path | None, replays: bool | str | Path) -> str:
    if not isinstance(replays, bool):
        return str(Path(replays).resolve())
    if out is None:
        raise UsageError("replays are written into a folder, got none; pass one as out, or --out DIR")
    return str(Path(out).resolve() / "replays")


class EvaluationInterrupted(KeyboardInterrupt):
    """Ctrl-C during an evaluation; `report` is about what was finished."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


@dataclass(frozen=True, slots=True)
class _Heard:
    """Whoever hears of a plan being played: that it begins, each episode, and how far it is."""

    on_begin: Callable[[], None]
    on_episode: Callable[[EpisodeRecord], None]
    progress: Progress


@dataclass(frozen=True, slots=True)
class _Kept:
    """The records of a plan; `more` says whether any of them was not in the journal before.

    `batches` are those of policies that act for many agents at once, as a look at them showed.
    """

    kept: list[EpisodeRecord]
    more: bool
    interrupted: bool
    workers: int
    batches: dict[str, Any]

    @property
    def batches_told(self) -> dict[str, Any]:
        """What a plan is told of batches: nothing where there are none."""
        return {"batches": self.batches} if self.batches else {}


def _play_all(
    plan: Plan,
    execution: Execution,
    journal: Journal | None,
    chosen: set[int],
    heard: _Heard,
) -> _Kept:
    """Play all of the plan that is chosen and not in the journal yet; return the records of everything."""
    before = {record.key: record for record in journal.records} if journal is not None else {}
    keys = {
        (plan.missions[m].name, plan.entries[e].label, n): (m, e, n)
        for m, e in plan.pairs()
        for n in range(plan.episodes)
    }
    totals = Counter(key[:2] for key in keys if key in before or key[2] in chosen)
    heard.progress.begin(totals, {one.name: plan.steps_of(m) for m, one in enumerate(plan.missions)})
    for record in before.values():
        heard.progress.add(record, now=False)
        heard.on_episode(record)

    def keep(record: EpisodeRecord) -> None:
        if record.key not in before:
            if journal is not None:
                journal.add(record)
            heard.progress.add(record)
            heard.on_episode(record)

    done = [where for key, where in keys.items() if key in before or where[2] not in chosen]
    run: Scheduler | None = None
    interrupted, workers, batches = False, 1, {}
    try:
        if len(done) < len(keys) or (journal is not None and not journal.finished):  # its report is about the look, too
            most = max(1, min(execution.jobs, len(keys) - len(done)))
            with Scheduler(plan, execution.settings, execution.backend, most, keep) as run:
                if execution.cluster is not None:
                    run.compare_nodes(execution.cluster)
                facts = _look(plan, execution, run)
                batches = plan.batches(facts)
                _tell_who_is_in_order(plan, facts)
                # Only now: what is refused leaves nothing behind that would stand in the way of the next one.
                heard.on_begin()
                if journal is not None:
                    journal.begin()
                tasks = plan.tasks(facts, done)
                tasks = [Task(t.mission, t.entry, tuple(n for n in t.episodes if n in chosen)) for t in tasks]
                workers, cores = execution.split(len(tasks), max(len(one.agents) for one in facts.values()))
                with heard.progress.playing(run.running):
                    run.play(reversed(tasks) if execution.reverse else tasks, workers, cores)
    except KeyboardInterrupt:
        interrupted = True
    found = {record.key: record for record in (run.records.values() if run is not None else ())}
    more = not before.keys() >= found.keys()
    found |= before
    return _Kept([found[key] for key in keys if key in found], more, interrupted, workers, batches)


def _look(plan: Plan, execution: Execution, run: Scheduler) -> dict[tuple[int, int], Facts]:
    """Look at what is played: not in the caller where policies act in processes of their own, since they may crash."""
    strategies = {one for entry in plan.entries for one in execution.settings.strategies(entry)}
    if execution.jobs or "processes" not in strategies or unsendable(EpisodeWorkerFactory(plan, execution.settings)):
        return run.look(strict=False)
    with Scheduler(plan, execution.settings, PROCESS) as elsewhere:
        elsewhere.look(strict=False)
        return run.looked(elsewhere)


def _tell_who_is_in_order(plan: Plan, facts: dict[tuple[int, int], Facts]) -> None:
    """Say once of each policy whose agents are asked only when it is their turn, although others were asked for."""
    reasons = {
        plan.entries[entry].specs[i].name: reason
        for (_, entry), found in facts.items()
        for i, reason in enumerate(found.in_order)
        if reason
    }
    for policy, reason in reasons.items():
        warning = TurnsInOrder(
            f"agents that follow {policy} take sequential turns one after the other, because {reason}"
        )
        warnings.warn(warning, stacklevel=user_stacklevel())


def about(plan: Plan) -> dict[str, Any]:
    """Describe a plan in plain values, with what produces its results."""
    specs = [spec for entry in plan.entries for spec in entry.specs]
    devices = {spec.name: spec.device for spec in specs if spec.device is not None}
    return {
        **({"devices": devices} if devices else {}),
        **({} if plan.episode_seeds is None else {"episode_seeds": [int(one) for one in plan.episode_seeds]}),
        **({} if plan.episode_tasks is None else {"tasks": describe_tasks(plan.episode_tasks)}),
        **({"turns": turns_of(plan.turns)} if plan.turns != SIMULTANEOUS else {}),
        **({"deterministic": True} if any(spec.deterministic for spec in specs) else {}),
        "missions": [mission.name for mission in plan.missions],
        "worlds": {mission.name: plain_settings(mission.details) for mission in plan.missions if mission.details},
        "policies": [entry.label for entry in plan.entries],
        "episodes": plan.episodes,
        "seed": plan.seed,
        "steps": plan.max_steps,
        "native_threads": plan.native_threads,
        IDENTITY: identity_of(plan.missions, specs),
    }
