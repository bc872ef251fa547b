"""`stretto eval`: parse, call, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from stretto.errors import UsageError
from stretto.evaluation.missions import find_missions
from stretto.evaluation.records import EpisodeRecord
from stretto.evaluation.replay import films
from stretto.evaluation.report import HEADINGS, Report
from stretto.evaluation.run import EvaluationInterrupted, evaluate
from stretto.policies.spec import STRATEGIES, parse_policy

WIDTH = 80
FAILED = 1


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def _jobs(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"it must be a whole number or 'auto', got {text!r}") from None


def evaluate_command(  # noqa: PLR0913, PLR0917  one parameter an option
    mission: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--mission", help="A mission: a name, a pattern, gym:ID, pz:MODULE, file.py:FUNCTION, or a YAML file."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--policy", help="A policy: a name, pkg.module:Class, file.py:Class, or class=NAME,data=FILE,kw.x=1."
        ),
    ] = None,
    variant: Annotated[list[str] | None, typer.Option("-v", "--variant", help="A variant of our games.")] = None,
    cogs: Annotated[int | None, typer.Option("-c", "--cogs", help="How many agents our games have.")] = None,
    mix: Annotated[
        bool, typer.Option("--mix", help="Let the policies play together instead of comparing them.")
    ] = False,
    episodes: Annotated[int, typer.Option("-e", "--episodes", help="Episodes of each mission.")] = 10,
    steps: Annotated[int | None, typer.Option("-s", "--steps", help="The most steps of an episode.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    map_seed: Annotated[int | None, typer.Option(help="Which map our games have.")] = None,
    only: Annotated[list[int] | None, typer.Option("--only", help="Play just this episode.")] = None,
    jobs: Annotated[
        str, typer.Option("-j", "--jobs", help="How many processes compute: a number, or auto; 0 is none but this one.")
    ] = "auto",
    parallel_policy: Annotated[
        bool, typer.Option("--parallel-policy", help="Give cores to agents before giving them to episodes.")
    ] = False,
    strategy: Annotated[str, typer.Option(help=f"Where agents choose: {', '.join(STRATEGIES)}.")] = "adaptive",
    action_timeout_ms: Annotated[
        float | None, typer.Option(help="The most that an agent may compute for a step.")
    ] = None,
    overage_ms: Annotated[float, typer.Option(help="By how much it may exceed that in an episode, in all.")] = 0.0,
    failed: Annotated[str, typer.Option(help="What a failed episode counts: exclude, or worst.")] = "exclude",
    output: Annotated[Format, typer.Option("--format", help="How results are printed.")] = Format.TABLE,
    out: Annotated[Path | None, typer.Option("--out", help="A folder for records, summary and report.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with what was begun in this folder.")] = None,
    video: Annotated[
        int, typer.Option("--video", help="Film the first so many episodes, into the folder of --out.")
    ] = 0,
    allow_import: Annotated[
        bool, typer.Option("--allow-import", help="Let mission files name code of their own.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> int:
    """Play policies on missions, the same episodes for each, and compare them."""
    what: dict[str, Any] = {
        "mission": mission or [],
        "policy": policy or [],
        "variant": variant or [],
        "cogs": cogs,
        "mix": mix,
        "episodes": episodes,
        "steps": steps,
        "seed": seed,
        "map_seed": map_seed,
        "only": only,
        "failed": failed,
    }
    folder = resume or out
    if resume is not None and not mission and not policy:
        what = _begun(resume)
    if what["failed"] not in ("exclude", "worst"):
        raise UsageError(f"--failed must be exclude or worst, got {what['failed']!r}")
    if not what["mission"] or not what["policy"]:
        raise UsageError(
            "at least one mission (-m) and one policy (-p) are needed; see: stretto missions, stretto policies"
        )
    specs = [parse_policy(text) for text in what["policy"]]
    missions = find_missions(
        what["mission"],
        cogs=what["cogs"],
        variants=what["variant"],
        map_seed=what["map_seed"],
        allow_import=allow_import,
    )
    chosen = what["only"]
    each = (1 if what["mix"] else len(specs)) * (len(chosen) if chosen else what["episodes"])
    try:
        with _progress({one.name: each for one in missions}, quiet) as on_episode:
            report = evaluate(
                missions,
                specs,
                episodes=max(what["episodes"], max(chosen) + 1 if chosen else 0),
                steps=what["steps"],
                seed=what["seed"],
                mix=what["mix"],
                only=chosen,
                jobs=_jobs(jobs),
                parallel_policy=parallel_policy,
                strategy=strategy,
                action_timeout_ms=action_timeout_ms,
                overage_ms=overage_ms,
                failed=what["failed"],
                out=folder,
                resume=resume is not None,
                on_begin=lambda: _keep_arguments(folder, what),
                on_episode=on_episode,
            )
    except EvaluationInterrupted as interrupted:
        if interrupted.report.records:
            _print(interrupted.report, output)
        if folder is not None:
            print(f"stretto: what is finished is kept; go on with: stretto eval --resume {folder}", file=sys.stderr)
        raise
    _print(report, output)
    if video and folder is not None:
        for path in films(
            missions, specs, what["episodes"], what["seed"], what["steps"], video, folder, mix=what["mix"]
        ):
            print(f"film: {path}", file=sys.stderr)
    if folder is not None:
        print(f"report: {folder / 'report.html'}", file=sys.stderr)
    return FAILED if any(record.failure is not None for record in report.records) else 0


ARGUMENTS = "arguments.json"


def _keep_arguments(folder: Path | None, what: dict[str, Any]) -> None:
    if folder is not None:
        (folder / ARGUMENTS).write_text(json.dumps(what, indent=1) + "\n")


def _begun(folder: Path) -> dict[str, Any]:
    try:
        what: dict[str, Any] = json.loads((folder / ARGUMENTS).read_text())
    except (OSError, ValueError):
        raise UsageError(f"there is no evaluation to go on with in {folder}: it has no readable {ARGUMENTS}") from None
    return what


@contextmanager
def _progress(counts: dict[str, int], quiet: bool) -> Iterator[Callable[[EpisodeRecord], None]]:
    """Show on stderr how far it is: a bar a mission in a terminal, elsewhere a line now and then."""
    console = Console(stderr=True, highlight=False)
    total = sum(counts.values())
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True) as bar:
            tasks = {name: bar.add_task(name, total=count) for name, count in counts.items()}
            yield lambda record: bar.advance(tasks[record.mission])
    else:
        done = 0

        def tell(_: EpisodeRecord) -> None:
            nonlocal done
            done += 1
            if done == total or done * 10 // total != (done - 1) * 10 // total:
                console.print(f"{done} of {total} episodes")

        yield tell


def _print(report: Report, output: Format) -> None:
    everything = {**report.to_json(), "episodes": [record.as_json() for record in report.records]}
    match output:
        case Format.JSON:
            print(json.dumps(everything, indent=2, sort_keys=True))
        case Format.YAML:
            import yaml

            print(yaml.safe_dump(json.loads(json.dumps(everything)), sort_keys=True), end="")
        case Format.CSV:
            print(report.to_csv(), end="")
        case Format.TABLE:
            _print_table(report)


def _print_table(report: Report) -> None:
    console = Console(width=min(WIDTH, Console().width), highlight=False)
    table = Table(box=None, pad_edge=False)
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i < 2 else "right", no_wrap=True)
    for row in report.rows(WIDTH):
        table.add_row(*map(escape, row))
    console.print(table)
    failures = [record for record in report.records if record.failure is not None]
    for record in failures[:3]:
        assert record.failure is not None
        print(f"failed: {record.mission}, {record.label}, episode {record.episode}: {record.failure.message}")
        print(f"  again: {record.failure.reproduce}")
    if len(failures) > 3:
        console.print(f"... and {len(failures) - 3} more failures")
