"""`stretto collect`: rollouts of a policy on a mission, kept in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from stretto.checkpoint import atomic_write
from stretto.cli import options
from stretto.cli.arguments import asked_for, keep_arguments
from stretto.cli.collect_progress import CollectionProgress, shown_progress
from stretto.cli.collect_summary import print_summary
from stretto.cli.options import DONE, TableOrJson, flag
from stretto.cli.results import prints_on_stderr
from stretto.cli.text import say, users_code
from stretto.collection.collect import ACT_ROWS, WAYS_TO_WAIT, collect
from stretto.collection.opened import CollectionInterrupted
from stretto.collection.rollout_folder import COLLECTION
from stretto.collection.rollouts import Rollouts
from stretto.collection.summary import summarize
from stretto.core import SIMULTANEOUS
from stretto.errors import ResourceError, UsageError
from stretto.missions.mission import Mission
from stretto.missions.resolve import find_missions
from stretto.policies.spec import parse_policy
from stretto.run_folder import PLAN, changes_told
from stretto.run_trace import trace_path, traced

SUMMARY = "summary.json"
RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Asked:
    """What rollouts depend on, as the user wrote it; kept in the folder of a collection, so that it can be gone on with."""

    mission: str = ""
    policy: str = ""
    rollouts: int = 100
    tasks: str | None = None
    episodes_per_task: int = 1
    variant: list[str] = field(default_factory=list)
    cogs: int | None = None
    map_seed: int | None = None
    turns: str = SIMULTANEOUS
    steps: int | None = None
    seed: int = 0
    act_rows: int = ACT_ROWS
    boundaries: bool = False
    rewards: bool = False
    oracle: bool = False
    fresh_worlds: bool = False
    allow_import: bool = False

    def world(self) -> Mission:
        """Return the mission that is named."""
        if not self.mission or not self.policy:
            raise UsageError(
                "a mission (-m) and a policy (-p) are needed, or --random-actions; see: stretto missions, stretto policies"
            )
        found = find_missions(
            [self.mission],
            cogs=self.cogs,
            variants=self.variant,
            map_seed=self.map_seed,
            allow_import=self.allow_import,
        )
        if len(found) != 1:
            raise UsageError(f"rollouts are of one mission, got {self.mission!r} for {len(found)} of them; name one")
        return found[0]

    def arguments(self) -> dict[str, Any]:
        """Return what `collect` is given besides the mission."""
        return {
            "policy": parse_policy(self.policy),
            "num_rollouts": self.rollouts,
            "tasks": None if self.tasks is None else read_tasks(Path(self.tasks)),
            "max_steps": self.steps,
            **{name: getattr(self, name) for name in ("episodes_per_task", "turns", "seed", "act_rows")},
            **{name: getattr(self, name) for name in ("boundaries", "rewards", "oracle", "fresh_worlds")},
        }


def read_tasks(path: Path) -> list[Any]:
    """Return the tasks in a YAML file, which is a list of them."""
    try:
        tasks = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"--tasks must be a readable YAML file, got {path} ({reason}); write a list of tasks"
        ) from None
    if not isinstance(tasks, list) or not tasks:
        raise UsageError(f"--tasks must be a file with a list of one or more tasks, got {path} with {tasks!r:.60}")
    return tasks


def collect_command(  # noqa: PLR0913, PLR0917  one parameter an option
    context: typer.Context,
    mission: options.Mission = None,
    policy: options.Policy = None,
    random_actions: Annotated[bool, flag("--random-actions", help="Act at random: the same as -p random.")] = False,
    rollouts: Annotated[int, options.whole("--rollouts", help="How many rollouts.")] = 100,
    tasks: Annotated[
        str | None, typer.Option("--tasks", metavar="FILE", help="A YAML file with a list of tasks to draw from.")
    ] = None,
    episodes_per_task: Annotated[
        int, options.whole("--episodes-per-task", help="Episodes of one task in a rollout.")
    ] = 1,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    turns: options.Turns = SIMULTANEOUS,
    steps: options.Steps = None,
    seed: options.Seed = 0,
    boundaries: Annotated[bool, flag("--boundaries", help="Show policies where an episode of a task begins.")] = False,
    rewards: Annotated[bool, flag("--rewards", help="Show policies the reward of their last step.")] = False,
    oracle: Annotated[bool, flag("--oracle", help="Show policies the task.")] = False,
    fresh_worlds: Annotated[bool, flag("--fresh-worlds", help="Make a world for every rollout.")] = False,
    check_reuse: Annotated[
        bool, flag("--check-reuse/--no-check-reuse", help="Look whether worlds carry something over, first.")
    ] = True,
    act_rows: Annotated[int, options.whole("--act-rows", help="Rows of a call of a policy that batches.")] = ACT_ROWS,
    jobs: options.Jobs = None,
    envs: Annotated[int | None, options.whole("--envs", help="How many environments are played at once.")] = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="|".join(WAYS_TO_WAIT), help="What is waited for; changes no rollout.")
    ] = "auto",
    backend: options.Backend = "auto",
    cluster: options.Cluster = None,
    isolate: Annotated[bool, flag("--isolate", help="Keep every world out of this process.")] = False,
    strategy: options.Strategy = "batched",
    hang_seconds: options.HangSeconds = 60.0,
    output: Annotated[TableOrJson, typer.Option("--format", help="How the summary is printed.")] = TableOrJson.TABLE,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="A new folder for the rollouts.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="DIR", help="Go on with what was begun in this folder; with --rollouts, collect more."
        ),
    ] = None,
    accept_changes: options.AcceptChanges = False,
    trace: options.Trace = None,
    allow_import: options.AllowImport = False,
    quiet: options.Quiet = False,
) -> int:
    """Collect rollouts of a policy on a mission, into a folder."""
    values = dict(locals())
    if random_actions and policy not in (None, RANDOM):
        raise UsageError(f"--random-actions is the policy random, got -p {policy} beside it; leave one of them out")
    asked = asked_for(Asked, context, {**values, "policy": RANDOM if random_actions else policy}, COLLECTION)
    folder = resume or out
    if folder is None:
        raise UsageError("rollouts are written into a folder, got none; add --out DIR, or --resume DIR")
    how = {
        "check_reuse": check_reuse,
        "num_envs": envs,
        "wait": wait,
        "isolate": isolate,
        "strategy": strategy,
        "step_timeout": hang_seconds,
        **_where(jobs, backend),
        "cluster": cluster,
        "out": folder,
        "resume": resume is not None,
        "accept_changes": accept_changes,
    }
    spans = None if trace is None else trace_path(trace or True, folder)
    found, timing = _collected(asked, how, spans, quiet=quiet)
    _report(asked, found, timing, folder, output)
    if spans is not None:
        say(f"trace: {spans}")
    return DONE


def _where(jobs: int | None, backend: str) -> dict[str, Any]:
    """Return where worlds are played."""
    if jobs != 0:
        return {"backend": backend, "workers": jobs}
    if backend not in ("auto", "serial"):
        raise UsageError(f"--jobs 0 plays everything in this process, got --backend {backend} beside it; leave one out")
    return {"backend": "serial"}


def _collected(
    asked: Asked, how: Mapping[str, Any], spans: Path | None, *, quiet: bool
) -> tuple[Rollouts, dict[str, Any]]:
    """Collect; when interrupted, say how to go on. Return the rollouts, and how long the new ones of them took."""
    folder: Path = how["out"]
    mission, arguments = asked.world(), asked.arguments()
    progress = CollectionProgress(asked.rollouts)

    def begin() -> None:
        progress.begin()
        keep_arguments(asked, folder, COLLECTION, resume=how["resume"])
        (folder / SUMMARY).unlink(missing_ok=True)  # it will be about fewer rollouts than there are

    try:
        with (
            prints_on_stderr(),
            shown_progress(progress, (mission.name, asked.policy), quiet=quiet),
            traced(spans, "collection"),
            users_code("collecting"),
        ):
            found = collect(mission, **arguments, **how, on_begin=begin, on_rollout=progress.add)
    except CollectionInterrupted as interrupted:
        say(f"stretto: interrupted after {len(interrupted.rollouts)} of {asked.rollouts} rollouts")
        if (folder / PLAN).exists():  # there is none before the first rollout
            say(f"stretto: what is finished is kept; go on with: stretto collect --resume {folder}")
        raise
    seconds, steps = progress.seconds, progress.steps - progress.earlier_steps
    timing = {"rollouts": progress.played, "seconds": round(seconds, 3), "steps_per_second": round(steps / seconds)}
    return found, timing if progress.played else {}


def _report(asked: Asked, found: Rollouts, timing: dict[str, Any], folder: Path, output: TableOrJson) -> None:
    """Print a summary, and keep it in the folder."""
    if not timing:  # nothing was played: it took as long as it did then
        with suppress(OSError, ValueError, KeyError, TypeError):
            timing = json.loads((folder / SUMMARY).read_bytes())["timing"]
    plan = json.loads((folder / PLAN).read_bytes())
    summary = {"mission": plan["world"], "policy": plan["policy"], **asdict(summarize(found)), "timing": timing}
    try:
        atomic_write(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
    except OSError as error:
        raise ResourceError(
            f"the summary could not be written into {folder}: {error.strerror}; the rollouts are there: make room, and "
            f"run stretto collect --resume {folder}"
        ) from None
    print_summary(summary, output)
    for one in changes_told(plan):
        say(f"stretto: warning: not all rollouts were played by the same code: {one}")
    say(f"rollouts: {folder}")
