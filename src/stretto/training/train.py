"""train: agents that learn in a world, each for itself; the same weights however it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.budget import CpuBudget, default_budget
from stretto.collection.description import OF_WORLD, describe_experience, mission_of
from stretto.collection.making import TrialSettings, worlds_and_trials
from stretto.collection.rollouts import Rollouts
from stretto.collection.tasks import Curriculum, rollout_tasks
from stretto.core import turns_of
from stretto.errors import UsageError
from stretto.missions.mission import Mission
from stretto.run_folder import TIMING, invoked_now
from stretto.run_trace import trace_path, traced
from stretto.training.checkpoints import Checkpoints, begin_from, go_on, saved_run
from stretto.training.choices import choices_of, settled_turns
from stretto.training.config import config_of, plain, read_config
from stretto.training.held_out import HeldOut, HeldOutTrials, learned_policy
from stretto.training.history import History
from stretto.training.interrupts import interrupts_deferred
from stretto.training.learners.own_settings import learner_text
from stretto.training.log import LOGGER
from stretto.training.loop import Interval
from stretto.training.nodes import Nodes, nodes_of
from stretto.training.progress import TrainingProgress
from stretto.training.recorded import check_recorded, recorded_rollouts
from stretto.training.report import AgentResult, TrainingInterrupted, TrainingReport
from stretto.training.run import Run
from stretto.training.run_files import TrainingFolder, read_rows
from stretto.training.schedules import Schedule
from stretto.training.settings import Config
from stretto.training.task_split import check_trials, tasks_of
from stretto.training.trackers import check_tracking
from stretto.workers.cluster import Cluster, current_cluster, opened

OnInterval = Callable[[Interval], Mapping[str, float] | None]
"""Hears of an interval; what it returns are figures of the user's own, for `metrics.jsonl`."""


def train(  # noqa: PLR0913  every choice has a name and a default here
    world: Any,
    learner: str | Callable[..., Any] | None = None,
    *,
    steps: int | None = None,
    num_envs: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool | str | Path = False,
    init_from: str | Path | None = None,
    accept_changes: bool = False,
    config: Mapping[str, Any] | str | Path | None = None,
    data: Any = None,
    tasks: Any = None,
    eval_tasks: Any = None,
    episodes_per_task: int | None = None,
    max_steps: int | None = None,
    turns: str | None = None,
    eval_every: int | None = None,
    budget: CpuBudget | None = None,
    cluster: Cluster | str | None = None,
    trace: str | Path | bool = False,
    command: str | None = None,
    on_interval: OnInterval = lambda _: None,
    progress: TrainingProgress | None = None,
    **make_options: Any,
) -> TrainingReport:
    """Let every agent of a world learn from its own experience, and return what came of it.

    For one seed the weights are the same, bit by bit, for every backend, number of workers and way to compute learners.

    Args:
        world: whatever `make_vec` takes.
        learner: how agents learn: a name, or a class of your own (see `AgentLearner`).
        steps: how many environment steps, at least: a run ends with an interval.
        num_envs: how many environments agents learn in at once. This decides what is learned.
        seed: of everything random.
        out: a new folder for metrics, checkpoints, a summary and a report.
        resume: go on with the run in the folder `out`, as if it had never been interrupted; it is refused if anything is
            asked for otherwise. The folder of another run: go on from there in the new folder `out`, with settings that may
            be others.
        init_from: begin with the weights of a run that is kept in this folder (`FOLDER#agent`: all with those of one).
        accept_changes: go on all the same if code or versions have changed; the plan in the folder says so.
        config: all other settings, as nested values or as a YAML file. What is given beside it counts more.
        data: rollouts to learn from, in place of what agents do themselves: those of `collect`, their folder, a dataset of
            Minari, or the text `minari:ID`. The world is played for evaluations alone.
        tasks: as in `collect`; by default those that the world draws by itself (`draw_task`), if it does.
        eval_tasks: a list of other tasks, for evaluations; by default `tasks`, or those that the world holds back.
        episodes_per_task: how many episodes a trial has, as in `collect`: the setting `trials.episodes`.
        max_steps: the most steps of an episode.
        turns: how a `TurnWorld` is played, as of `evaluate`; a step is a turn of all agents.
        eval_every: after how many steps agents are evaluated on held-out episodes.
        budget: the cores to draw on.
        cluster: collect and learn on the nodes of a Ray cluster: one that `stretto.cluster` has opened, or its address,
            "auto" or "local".
        trace: a file for the spans of all processes, to be opened in Perfetto; `True`: trace.json in the folder of `out`.
        command: the command line that asked for this, for the report to show.
        on_interval: hears of each interval when agents have learned from it, and may return figures of its own.
        progress: is told how far it is, for others to look at meanwhile.
        make_options: as of `make_vec`: `backend`, `workers`, `env_kwargs`, `cogs`, `variants`, `wrappers` and so on.

    Raises:
        TrainingInterrupted: at Ctrl-C, with the report of what was learned until then.
    """
    layer = read_config(Path(config)) if isinstance(config, (str, Path)) else config or {}
    given: dict[str, Any] = {"learner": learner_text(learner), "steps": steps, "num_envs": num_envs, "turns": turns}
    layers = [layer, {name: value for name, value in given.items() if value is not None}]
    if eval_every is not None:
        layers.append({"evaluation": {"every": eval_every}})
    if episodes_per_task is not None:
        layers.append({"trials": {"episodes": episodes_per_task}})
    mission = mission_of(world, make_options)
    options = {name: value for name, value in make_options.items() if name not in OF_WORLD}
    settled = settled_turns(config_of(mission.name, *layers), mission)
    if tasks is None and (drawn := tasks_of(mission, settled.trials, seed)) is not None:
        tasks, held_back = drawn
        eval_tasks = held_back if eval_tasks is None else eval_tasks
    recorded = None if data is None else recorded_rollouts(data)
    check_recorded(settled.learner, recorded, cluster)
    task = _Task(mission, settled, seed, tasks, eval_tasks, max_steps, options, recorded)
    path = trace_path(trace, out)
    beginning = _Beginning.of(out, resume, init_from)
    plan = {**task.plan(), TIMING: invoked_now(command, **beginning.told)}
    going_on = {"resume": resume is True, "accept_changes": accept_changes}
    check_tracking(settled.tracking, out)
    if cluster is None and make_options.get("backend") == "ray":
        cluster = current_cluster()
    with (
        opened(cluster) as found,
        TrainingFolder.of(out, plan, **going_on) as folder,
        traced(path, "training"),
        nodes_of(found) as nodes,
    ):
        folder.track(settled.tracking)
        cores = nodes or budget or default_budget()
        return _trained(task, folder, cores, on_interval, progress or TrainingProgress(), beginning)


@dataclass(frozen=True)
class _Beginning:
    """Where a run begins: anew, where the run in the folder `earlier` was, or with the `weights` of another."""

    earlier: Path | None = None
    weights: str | None = None
    told: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, out: str | Path | None, resume: bool | str | Path, init_from: str | Path | None) -> _Beginning:
        if resume is False:
            return cls() if init_from is None else cls(weights=str(init_from), told={"init_from": str(init_from)})
        if out is None or init_from is not None:
            raise UsageError(
                f"a run goes on in a folder and from its own weights, got out={out} and init_from={init_from}; name the "
                f"folder as out, and leave init_from out"
            )
        return cls(Path(out)) if resume is True else cls(Path(resume), told={"forked_from": str(resume)})

    @property
    def is_new(self) -> bool:
        """Whether there is nothing that it begins with."""
        return self.earlier is None and self.weights is None

    def apply(self, run: Run, progress: TrainingProgress, folder: TrainingFolder) -> History:
        """Bring a run and its folder to where it begins; return the figures of the intervals before."""
        if self.weights is not None:
            begin_from(run, self.weights)
        state = None if self.earlier is None else saved_run(self.earlier)
        if state is None or self.earlier is None:
            return History()
        go_on(run, progress, state)
        folder.go_on(self.earlier, progress.intervals)
        return History(read_rows(self.earlier, progress.intervals))


@dataclass(frozen=True)
class _Task:
    """What is to be learned: in which world, how, from which seed."""

    mission: Mission
    config: Config
    seed: int
    tasks: Any
    eval_tasks: Any
    max_steps: int | None
    options: dict[str, Any] = field(default_factory=dict)
    recorded: Rollouts | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tasks, Curriculum):
            raise UsageError(
                "tasks to learn from must depend on nothing that was seen, got a Curriculum; pass a list or a function"
            )
        check_trials(self.config.trials, self.tasks, choices_of(self.config).turns)

    @property
    def trial(self) -> TrialSettings:
        """What the experience depends on beside the world and who acts."""
        turns, rows, trials = choices_of(self.config).turns, self.config.num_envs, self.config.trials
        shown = False, trials.boundaries, trials.rewards, False, trials.actions
        return TrialSettings(self.seed, trials.episodes, self.max_steps, turns, rows, *shown)

    def plan(self) -> dict[str, Any]:
        """Describe all that its result depends on, in plain values.

        A run may go on with more steps, unless something in it follows how far it is.
        """
        settings = plain(self.config)
        steps = settings.pop("steps")
        settings["turns"] = settings["turns"] and turns_of(settings["turns"])
        settings["parallel"] = {"train_interval": settings["parallel"]["train_interval"]}
        if choices_of(self.config).learner_set == "sequential":
            settings["block"] = 1
        settings["loop"] = choices_of(self.config).loop
        for name in ("checkpoint", "tracking", "learner_set", "learner_seconds", "on_failure"):
            del settings[name]
        if settings["loop"] != "free":
            del settings["most_lag"]
        return {
            "steps": steps,
            "config": settings,
            **(
                {}
                if self.recorded is None
                else {"data": f"{len(self.recorded)} rollouts {self.recorded.digest()[:16]}"}
            ),
            **({"scheduled_steps": steps} if any(map(_changes, vars(self.config.settings).values())) else {}),
            **describe_experience(self.mission, [], self.tasks, self.trial, self.options),
        }

    def run(self, cores: CpuBudget | Nodes, *, resumable: bool) -> Run:
        """Make the worlds and the learners."""
        options = dict(self.options)
        source = rollout_tasks(self.tasks)
        make, trials = worlds_and_trials(self.mission, source, self.trial, options, check_reuse=False)
        experience = trials if self.recorded is None else self.recorded
        return Run(make, experience, self.config, self.seed, cores, options, resumable=resumable)

    def held_out(self) -> HeldOut:
        """Return the episodes, or the trials, on which agents are evaluated."""
        trials, tasks = self.config.trials, self.tasks if self.eval_tasks is None else self.eval_tasks
        common = self.mission, self.config.evaluation, self.seed, self.max_steps, self.trial.turns
        if trials.episodes > 1 or trials.shows:
            return HeldOutTrials(*common, tasks, trials)
        if callable(tasks):
            function = tasks
            tasks = lambda _, episode, stream: function(episode, stream)  # noqa: E731  one of two forms of the same
        return HeldOut(*common, tasks)


def _changes(setting: Any) -> bool:
    return isinstance(setting, Schedule) and setting.end is not None


def _trained(
    task: _Task,
    folder: TrainingFolder,
    cores: CpuBudget | Nodes,
    on_interval: OnInterval,
    progress: TrainingProgress,
    beginning: _Beginning,
) -> TrainingReport:
    held_out, interrupted = task.held_out(), False
    with task.run(cores, resumable=folder.path is not None) as run:
        history = beginning.apply(run, progress, folder)
        checkpoints = Checkpoints(folder.path, task.config.checkpoint, run, progress)
        if not beginning.is_new:
            checkpoints.begin(earlier=beginning.earlier == folder.path)
        progress.begin(task.config.steps)
        try:
            with interrupts_deferred() as pressed:
                for interval in run:
                    before = progress.steps
                    row = progress.add(interval)
                    if own := on_interval(interval):
                        row["custom"] = dict(own)
                    if held_out.due(before, interval.steps, over=run.loop.over):
                        row["evaluation"] = _evaluated(held_out, run, progress)
                    history.add(row)
                    folder.add(row)
                    for failure in interval.failures:
                        folder.tell_of(failure)
                    if interrupted := pressed():
                        break
                    checkpoints.save(now=run.loop.over)
                    ahead = 2 * (interval.steps - before)  # the next interval may have some more steps than this one
                    checkpoints.keep(evaluates=held_out.due(interval.steps, interval.steps + ahead, over=False))
            if interrupted:  # in time: nothing cuts this short any more
                checkpoints.save(now=True)
        except KeyboardInterrupt:
            interrupted = True
            checkpoints.save_kept()
        report = _report(task, run, progress, history.rows, folder.path)
    if interrupted:
        raise TrainingInterrupted(report)
    folder.finish(report)
    return report


def _evaluated(held_out: HeldOut, run: Run, progress: TrainingProgress) -> dict[str, Any]:
    """Evaluate agents as they are, and take note of it."""
    with progress.evaluating():
        found = held_out.play(progress.steps, run.policies)
    progress.evaluations.append(found)
    LOGGER.info("held-out episodes after %d steps: %s", progress.steps, found["return"])
    return found


def _report(
    task: _Task, run: Run, progress: TrainingProgress, history: Sequence[Mapping[str, Any]], folder: Path | None
) -> TrainingReport:
    weights = run.weights()
    return TrainingReport(
        task.mission.name,
        task.seed,
        task.config,
        progress.steps,
        {
            agent: AgentResult(one.mean_return, one.updates, weights[agent], one.stopped)
            for agent, one in progress.agents.items()
        },
        learned_policy(run.policies),
        history,
        list(progress.evaluations),
        folder,
    )
