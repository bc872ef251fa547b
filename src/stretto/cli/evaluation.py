"""`stretto eval`: parse, call, print."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from stretto.cli import options
from stretto.cli.options import DONE, FAILED, Format
from stretto.cli.results import print_report, progress
from stretto.cli.text import say
from stretto.errors import UsageError
from stretto.evaluation.missions import Mission, find_missions
from stretto.evaluation.replay import films
from stretto.evaluation.report import Report
from stretto.evaluation.run import EvaluationInterrupted, evaluate
from stretto.evaluation.service import HANG_SECONDS
from stretto.evaluation.tracing import TRACE
from stretto.policies.spec import DEFAULT_STRATEGY, PolicySpec, parse_policy
from stretto.policies.torch_settings import determinism_note

ARGUMENTS = "arguments.json"


@dataclass(frozen=True, slots=True)
class Asked:
    """What results depend on, as the user wrote it; kept in the folder of an evaluation, so that it can be gone on with."""

    mission: list[str] = field(default_factory=list)
    policy: list[str] = field(default_factory=list)
    variant: list[str] = field(default_factory=list)
    cogs: int | None = None
    map_seed: int | None = None
    mix: bool = False
    episodes: int = 10
    steps: int | None = None
    seed: int = 0
    only: list[int] | None = None
    device: str | None = None
    deterministic: bool = False
    failed: str = "exclude"

    @classmethod
    def begun(cls, folder: Path) -> Self:
        """Return what was asked for in the evaluation that was begun in a folder."""
        try:
            return cls(**json.loads((folder / ARGUMENTS).read_text()))
        except (OSError, ValueError, TypeError):
            raise UsageError(
                f"there is no evaluation to go on with in {folder}: it has no readable {ARGUMENTS}"
            ) from None

    def keep(self, folder: Path | None) -> None:
        """Write it into a folder, if there is one."""
        if folder is not None:
            (folder / ARGUMENTS).write_text(json.dumps(asdict(self), indent=1) + "\n")

    def check(self) -> None:
        """Refuse what could not be played."""
        if self.failed not in ("exclude", "worst"):
            raise UsageError(f"--failed must be exclude or worst, got {self.failed!r}")
        if not self.mission or not self.policy:
            raise UsageError(
                "at least one mission (-m) and one policy (-p) are needed; see: stretto missions, stretto policies"
            )
        if self.only and min(self.only) < 0:
            raise UsageError(f"--only must be the number of an episode, from 0 on, got {min(self.only)}")

    def count(self) -> int:
        """Return how many episodes of each mission will be played."""
        return (1 if self.mix else len(self.policy)) * (len(set(self.only)) if self.only else self.episodes)

    def arguments(self) -> dict[str, Any]:
        """Return what `evaluate` is told besides missions and policies."""
        names = ("steps", "seed", "mix", "only", "device", "deterministic", "failed")
        last = max(self.only) + 1 if self.only else 0
        return {"episodes": max(self.episodes, last), **{name: getattr(self, name) for name in names}}


def evaluate_command(  # noqa: PLR0913, PLR0917  one parameter an option
    mission: options.Missions = None,
    policy: options.Policies = None,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    mix: options.Mix = False,
    episodes: options.Episodes = 10,
    steps: options.Steps = None,
    seed: options.Seed = 0,
    only: options.Only = None,
    jobs: options.Jobs = None,
    parallel_policy: options.ParallelPolicy = False,
    strategy: options.Strategy = DEFAULT_STRATEGY,
    action_timeout_ms: options.ActionTimeout = None,
    overage_ms: options.Overage = 0.0,
    hang_seconds: options.HangSeconds = HANG_SECONDS,
    device: options.Device = None,
    deterministic: options.Deterministic = False,
    failed: options.Failed = "exclude",
    output: options.Output = Format.TABLE,
    out: options.Out = None,
    resume: options.Resume = None,
    video: options.Video = 0,
    trace: options.Trace = None,
    allow_import: options.AllowImport = False,
    quiet: options.Quiet = False,
) -> int:
    """Compare policies on missions, on the same episodes."""
    asked = Asked(
        mission=mission or [],
        policy=policy or [],
        variant=variant or [],
        cogs=cogs,
        map_seed=map_seed,
        mix=mix,
        episodes=episodes,
        steps=steps,
        seed=seed,
        only=only,
        device=device,
        deterministic=deterministic,
        failed=failed,
    )
    if resume is not None and not mission and not policy:
        asked = Asked.begun(resume)
    asked.check()
    folder = resume or out
    if video and folder is None:
        raise UsageError(f"films are written into a folder, got --video {video} without one; add --out DIR")
    missions = find_missions(
        asked.mission, cogs=asked.cogs, variants=asked.variant, map_seed=asked.map_seed, allow_import=allow_import
    )
    specs = [
        replace(parse_policy(text), device=asked.device, deterministic=asked.deterministic) for text in asked.policy
    ]
    how = {
        "jobs": jobs,
        "parallel_policy": parallel_policy,
        "strategy": strategy,
        "action_timeout_ms": action_timeout_ms,
        "overage_ms": overage_ms,
        "hang_seconds": hang_seconds,
        "out": folder,
        "resume": resume is not None,
        "trace": {None: False, "": True}.get(trace, trace),
    }
    report = _evaluated(asked, missions, specs, how, output, quiet=quiet)
    print_report(report, output)
    if folder is not None:
        say(f"report: {folder / 'report.html'}")
    if trace is not None:
        say(f"trace: {trace or (folder or Path()) / TRACE}")
    if folder is not None and video:
        for path in films(missions, specs, asked.episodes, asked.seed, asked.steps, video, folder, mix=asked.mix):
            say(f"film: {path}")
    return FAILED if any(record.failure is not None for record in report.records) else DONE


def _evaluated(
    asked: Asked, missions: list[Mission], specs: list[PolicySpec], how: dict[str, Any], output: Format, *, quiet: bool
) -> Report:
    """Play it; when interrupted, print what there is, and how to go on."""

    def begin() -> None:
        asked.keep(how["out"])
        if asked.deterministic:
            say(f"deterministic: {determinism_note()}")

    try:
        with progress({mission.name: asked.count() for mission in missions}, quiet) as on_episode:
            return evaluate(missions, specs, **asked.arguments(), **how, on_begin=begin, on_episode=on_episode)
    except EvaluationInterrupted as interrupted:
        if interrupted.report.records:
            print_report(interrupted.report, output)
        if how["out"] is not None:
            say(f"stretto: what is finished is kept; go on with: stretto eval --resume {how['out']}")
        raise
