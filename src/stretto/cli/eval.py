"""`stretto eval`: policies compared on missions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from stretto.cli import options
from stretto.cli.arguments import asked_for, is_given, keep_arguments
from stretto.cli.eval_progress import shown_progress
from stretto.cli.films import film, tell_unfilmable
from stretto.cli.options import DONE, FAILED, Format
from stretto.cli.results import print_report, prints_on_stderr
from stretto.cli.runs import say_changes
from stretto.cli.text import say
from stretto.core import SIMULTANEOUS
from stretto.errors import UsageError
from stretto.evaluation.evaluate import EvaluationInterrupted, evaluate
from stretto.evaluation.journal import EVALUATION
from stretto.evaluation.plan import HANG_SECONDS, Plan, entries_of
from stretto.evaluation.report.report import Report
from stretto.missions.mission import Mission, program_of
from stretto.missions.resolve import find_missions
from stretto.policies.spec import DEFAULT_STRATEGY, PolicySpec, parse_policy
from stretto.policies.torch_settings import determinism_note
from stretto.run_folder import PLAN
from stretto.run_trace import TRACE

_OF_MISSIONS_AND_POLICIES = ("mission", "policy", "variant", "cogs", "map_seed", "allow_import")


@dataclass(frozen=True, slots=True)
class Asked:
    """What results depend on, as the user wrote it; kept in the folder of an evaluation, so that it can be gone on with."""

    mission: list[str] = field(default_factory=list)
    policy: list[str] = field(default_factory=list)
    variant: list[str] = field(default_factory=list)
    cogs: int | None = None
    map_seed: int | None = None
    mix: bool = False
    turns: str = SIMULTANEOUS
    episodes: int = 10
    steps: int | None = None
    seed: int = 0
    episode_seeds: list[int] | None = None
    only: list[int] | None = None
    action_timeout_ms: float | None = None
    overage_ms: float = 0.0
    hang_seconds: float = HANG_SECONDS
    native_threads: int = 1
    device: str | None = None
    deterministic: bool = False
    failed: str = "exclude"
    normalize: str | None = None
    allow_import: bool = False

    def check(self) -> None:
        """Refuse what could not be played."""
        if self.failed not in ("exclude", "worst"):
            raise UsageError(f"--failed must be exclude or worst, got {self.failed!r}")
        if not self.mission or not self.policy:
            raise UsageError(
                "at least one mission (-m) and one policy (-p) are needed; see: stretto missions, stretto policies"
            )
        if self.overage_ms > 0 and self.action_timeout_ms is None:
            raise UsageError(
                f"--overage-ms is by how much --action-timeout-ms may be exceeded, got {self.overage_ms:g} without a "
                f"timeout; add --action-timeout-ms NUMBER"
            )
        if self.only and min(self.only) < 0:
            raise UsageError(f"--only must be the number of an episode, from 0 on, got {min(self.only)}")

    def count(self) -> int:
        """Return how many episodes of each mission will be played."""
        return (1 if self.mix else len(self.policy)) * (len(set(self.only)) if self.only else self.episodes)

    def missions(self) -> list[Mission]:
        """Return the missions that are named."""
        return find_missions(
            self.mission,
            cogs=self.cogs,
            variants=self.variant,
            map_seed=self.map_seed,
            allow_import=self.allow_import,
        )

    def specs(self, missions: Sequence[Mission]) -> list[PolicySpec]:
        """Return the policies that are named, as they are called where these missions come from."""
        program = program_of(missions)
        return [
            replace(parse_policy(text, program=program), device=self.device, deterministic=self.deterministic)
            for text in self.policy
        ]

    def plan(self, missions: Sequence[Mission], specs: Sequence[PolicySpec]) -> Plan:
        """Return the plan that `evaluate` will play."""
        entries, episodes = entries_of(specs, mix=self.mix), self.arguments()["episodes"]
        seeds = None if self.episode_seeds is None else tuple(self.episode_seeds)
        how = episodes, self.seed, self.steps, self.turns, self.native_threads, seeds
        return Plan(tuple(missions), entries, *how)

    def arguments(self) -> dict[str, Any]:
        """Return what `evaluate` is given besides missions and policies."""
        given = {name: value for name, value in asdict(self).items() if name not in _OF_MISSIONS_AND_POLICIES}
        return {**given, "episodes": max(self.episodes, max(self.only) + 1) if self.only else self.episodes}


def evaluate_command(  # noqa: PLR0913, PLR0917  one parameter an option
    context: typer.Context,
    mission: options.Missions = None,
    policy: options.Policies = None,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    mix: options.Mix = False,
    turns: options.Turns = SIMULTANEOUS,
    episodes: options.Episodes = 10,
    steps: options.Steps = None,
    seed: options.Seed = 0,
    episode_seeds: options.EpisodeSeeds = None,
    only: options.Only = None,
    jobs: options.Jobs = None,
    cluster: options.Cluster = None,
    parallel_policy: options.ParallelPolicy = False,
    strategy: options.Strategy = DEFAULT_STRATEGY,
    action_timeout_ms: options.ActionTimeout = None,
    overage_ms: options.Overage = 0.0,
    hang_seconds: options.HangSeconds = HANG_SECONDS,
    native_threads: options.NativeThreads = 1,
    device: options.Device = None,
    deterministic: options.Deterministic = False,
    failed: options.Failed = "exclude",
    normalize: options.Normalize = None,
    output: options.Output = Format.TABLE,
    out: options.Out = None,
    resume: options.Resume = None,
    accept_changes: options.AcceptChanges = False,
    video: options.Video = 0,
    replays: options.Replays = False,
    save_replay_dir: options.SaveReplayDir = None,
    trace: options.Trace = None,
    allow_import: options.AllowImport = False,
    quiet: options.Quiet = False,
) -> int:
    """Compare policies on missions, on the same episodes."""
    asked = _asked(context, locals())
    folder = resume or out
    if video and folder is None:
        raise UsageError(f"films are written into a folder, got --video {video} without one; add --out DIR")
    missions = asked.missions()
    specs = asked.specs(missions)
    plan = asked.plan(missions, specs)
    unseen = tell_unfilmable(plan) if video else {}
    how = {
        "jobs": jobs,
        "cluster": cluster,
        "parallel_policy": parallel_policy,
        "strategy": strategy,
        "out": folder,
        "resume": resume is not None,
        "replays": save_replay_dir or replays,
        "accept_changes": accept_changes,
        "trace": {None: False, "": True}.get(trace, trace),
        "command": options.command_line(context),
    }
    report = _evaluated(asked, missions, specs, how, output, quiet=quiet)
    print_report(report, output)
    say_changes(report)
    if asked.mix and (idle := _idle([spec.name for spec in specs], report)):
        say(f"stretto: warning: {idle}")
    if folder is not None:
        say(f"report: {folder / 'report.html'}")
    if trace is not None:
        say(f"trace: {trace or (folder or Path()) / TRACE}")
    if folder is not None and video:
        film(plan, report, video, folder, unseen)
    return FAILED if any(record.failure is not None for record in report.records) else DONE


def _asked(context: typer.Context, values: Mapping[str, Any]) -> Asked:
    """Return what the values of options ask for; with `--resume` alone, what was asked for in that folder."""
    if values["episode_seeds"] is not None:
        seeds = options.read_seeds(values["episode_seeds"])
        if is_given(context, "episodes") and values["episodes"] != len(seeds):
            raise UsageError(
                f"--episode-seeds has {len(seeds)} episodes, got --episodes {values['episodes']}; leave it out"
            )
        values = {**values, "episode_seeds": seeds, "episodes": len(seeds)}
    asked = asked_for(Asked, context, values, EVALUATION)
    asked.check()
    return asked


def _idle(names: list[str], report: Report) -> str:
    """Say which policies of a mix no agent followed, by mission, as there were too few agents for their share."""
    seen: dict[str, tuple[int, set[str]]] = {}
    for record in report.records:  # with more policies than agents, each episode has some of them
        seen.setdefault(record.mission, (len(record.policies), set()))[1].update(record.policies.values())
    without = [
        f"{', '.join(idle)} on {mission} ({agents} agent{'s' * (agents != 1)})"
        for mission, (agents, playing) in seen.items()
        if (idle := [name for name in dict.fromkeys(names) if name not in playing])
    ]
    if not without:
        return ""
    return (
        f"every policy of a mix needs agents that follow it, and no agent followed {'; '.join(without)}; "
        f"give the mission more agents or more episodes, or the policy a larger proportion"
    )


def _evaluated(
    asked: Asked, missions: list[Mission], specs: list[PolicySpec], how: dict[str, Any], output: Format, *, quiet: bool
) -> Report:
    """Play it; when interrupted, print what there is, and how to go on."""

    def begin() -> None:
        if how["out"] is not None:
            keep_arguments(asked, how["out"], EVALUATION, resume=how["resume"])
        if asked.deterministic:
            say(f"deterministic: {determinism_note()}")

    try:
        with prints_on_stderr(), shown_progress(quiet) as progress:
            return evaluate(missions, specs, **asked.arguments(), **how, on_begin=begin, progress=progress)
    except EvaluationInterrupted as interrupted:
        if interrupted.report.records:
            print_report(interrupted.report, output)
        done, total = len(interrupted.report.records), asked.count() * len(missions)
        say(f"stretto: interrupted after {done} of {total} episodes; policies may not have played the same ones yet")
        if how["out"] is not None and (how["out"] / PLAN).exists():  # there is none before the first episode
            say(f"stretto: what is finished is kept; go on with: stretto eval --resume {how['out']}")
        raise
