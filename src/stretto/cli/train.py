"""`stretto train`: agents that learn in a mission."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.cli import options
from stretto.cli.arguments import is_given, keep_arguments
from stretto.cli.options import DONE, FAILED, TableOrJson, flag
from stretto.cli.results import prints_on_stderr
from stretto.cli.text import filled, say, screen_width, users_code
from stretto.errors import UsageError
from stretto.evaluation.report.wording import counted, short_number
from stretto.run_checkpoints import all_checkpoints
from stretto.run_trace import trace_path

if TYPE_CHECKING:
    from stretto.cli.train_arguments import Asked
    from stretto.training.report import TrainingReport


def train_command(  # noqa: PLR0913, PLR0917  one parameter an option
    context: typer.Context,
    mission: options.Mission = None,
    learner: Annotated[
        str | None,
        typer.Option("--learner", metavar="NAME", help="How agents learn: ppo, dqn, sac, bc or file.py:CLASS."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DIR|minari:ID",
            help="Learn from these recorded rollouts.",
        ),
    ] = None,
    steps: Annotated[int | None, options.whole("--steps", help="How many environment steps.")] = None,
    envs: Annotated[int | None, options.whole("--envs", help="How many environments agents learn in at once.")] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings, in a YAML file; --show-config prints one."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as ppo.learning_rate=3e-4; can be repeated."),
    ] = None,
    show_config: Annotated[bool, flag("--show-config", help="Print all settings of the run as YAML, and end.")] = False,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    max_steps: Annotated[int | None, options.whole("--max-steps", help="The most steps of an episode.")] = None,
    turns: Annotated[
        str | None, typer.Option("--turns", metavar="NAME", help="As for stretto eval; agents learn in such turns.")
    ] = None,
    seed: options.Seed = 0,
    seeds: options.Seeds = None,
    eval_every: Annotated[
        int | None, options.whole("--eval-every", help="After how many steps agents play held-out episodes.")
    ] = None,
    backend: options.Backend = "auto",
    jobs: options.Jobs = None,
    cluster: options.Cluster = None,
    device: options.Device = None,
    debug: Annotated[bool, flag("--debug", help="Do everything in one thread of this process.")] = False,
    out: options.Out = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="DIR",
            help="Go on with the run in this folder, as if it had never been interrupted; with --out, in a new folder, where "
            "settings may be others.",
        ),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            "--init-from", metavar="DIR[#AGENT]", help="Begin with the weights of a run, or of one agent of it."
        ),
    ] = None,
    accept_changes: options.AcceptChanges = False,
    trace: options.Trace = None,
    allow_import: options.AllowImport = False,
    output: Annotated[TableOrJson, typer.Option("--format", help="How results are printed.")] = TableOrJson.TABLE,
    quiet: options.Quiet = False,
) -> int:
    """Let every agent of a mission learn from its own experience."""
    check_installed()
    from stretto.cli.train_arguments import Asked, asked_with, layers_of
    from stretto.training.config import plain
    from stretto.training.run_files import TRAINING

    values = dict(locals())
    asked = asked_with(context, values, resume, Asked, TRAINING)
    found = asked.missions(allow_import=allow_import)
    asked, settled = asked.settled(found[0], layers_of(values))
    if show_config:
        print(yaml.safe_dump(plain(settled), sort_keys=False), end="")
        return DONE
    if settled.preset is not None:
        say(f"settings of the preset {settled.preset} hold where no others are given; see them with --show-config")
    how: dict[str, Any] = {
        "config": plain(settled),
        "max_steps": asked.max_steps,
        "data": asked.data,
        "command": options.command_line(context),
        "backend": "serial" if debug or jobs == 0 else backend,
        "init_from": init_from,
        "accept_changes": accept_changes,
    }
    with _log_shown(debug):
        if seeds is None:
            summaries = [_trained(found, asked, how | _of_one(values, asked), quiet=quiet or debug).summary()]
        else:
            _check_several(context, values)
            summaries = _trained_seeds(found, values, how, quiet=quiet or debug)
    _print(summaries, output)
    _say_where(out or resume, trace)
    stopped = any("stopped" in agent for one in summaries for agent in one["agents"].values())
    folder = out or resume
    unwritten = folder is not None and not (folder / "summary.json").is_file()
    return FAILED if stopped or unwritten else DONE


def _of_one(values: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """Return the arguments of `train` that options give for one run, and several seeds have otherwise."""
    out, resume, trace = values["out"], values["resume"], values["trace"]
    return {
        "seed": asked.seed,
        "workers": values["jobs"] or None,
        "cluster": values["cluster"],
        "trace": False if trace is None else trace or True,
        "resume": resume is not None if out is None else resume or False,
        "out": out or resume,
    }


def _check_several(context: typer.Context, values: Mapping[str, Any]) -> None:
    """Refuse options that several seeds cannot have."""
    both = values["out"] is not None and values["resume"] is not None
    if is_given(context, "seed") or values["trace"] is not None or values["cluster"] is not None or both:
        raise UsageError(
            "--seeds are several runs on this machine, got --seed, --trace, --cluster, or --resume and --out together; leave "
            "one of them out"
        )


def _say_where(out: Path | None, trace: str | None) -> None:
    """Say where there is more than was printed."""
    if out is not None and (out / "report.html").is_file():
        say(f"report: {out / 'report.html'}")
    if trace is not None:
        say(f"trace: {trace_path(trace or True, out)}")


@contextmanager
def _log_shown(wanted: bool) -> Iterator[None]:
    """Show what runs log while the body runs on stderr, updates of agents too, if that is wanted."""
    from stretto.training.log import LOGGER, AgentFormatter

    if not wanted:
        yield
        return
    shown, level = logging.StreamHandler(), LOGGER.level
    shown.setFormatter(AgentFormatter())
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.addHandler(shown)
    try:
        yield
    finally:
        LOGGER.removeHandler(shown)
        LOGGER.setLevel(level)


def check_installed() -> None:
    """Refuse to train without what the extra `train` installs."""
    if missing := [name for name in ("torch", "pydantic") if find_spec(name) is None]:
        raise UsageError(
            f"training needs {' and '.join(missing)}, which this Python does not have; pip install 'stretto[train]'"
        )


def _trained(found: Sequence[Any], asked: Asked, how: Mapping[str, Any], *, quiet: bool) -> TrainingReport:
    """Train; when interrupted, say what there is, and how to go on."""
    from stretto.cli.train_progress import shown_progress
    from stretto.training.progress import TrainingProgress
    from stretto.training.report import TrainingInterrupted
    from stretto.training.run_files import TRAINING
    from stretto.training.train import train

    progress, folder, kept = TrainingProgress(), how["out"], False

    def begin(_: object) -> None:
        nonlocal kept
        if folder is not None and not kept:
            keep_arguments(asked, folder, TRAINING, resume=how["resume"] is True)
            kept = True

    try:
        with prints_on_stderr(), shown_progress(progress, quiet=quiet), users_code("training"):
            return train(list(found), **how, on_interval=begin, progress=progress)
    except TrainingInterrupted as interrupted:
        steps, total = interrupted.report.steps, interrupted.report.config.steps
        say(f"stretto: interrupted after {steps:,} of {counted(total, 'step')}")
        if folder is not None and all_checkpoints(folder):
            say(f"stretto: the last checkpoint is kept; go on with: stretto train --resume {folder}")
        raise


def _trained_seeds(
    found: Sequence[Any], values: Mapping[str, Any], how: Mapping[str, Any], *, quiet: bool
) -> list[dict[str, Any]]:
    """Train once for each seed; return the summaries."""
    from stretto.cli.train_progress import shown_seeds
    from stretto.training.seeds import train_seeds

    seeds, resume = options.read_seed_range(values["seeds"]), values["resume"]
    out, jobs = values["out"] or resume, 0 if values["debug"] else values["jobs"]
    if out is None:
        raise UsageError("runs of several seeds are kept in a folder, got none; add --out DIR")
    total = how["config"]["steps"]
    try:
        with prints_on_stderr(), shown_seeds(out, seeds, total, quiet=quiet), users_code("training"):
            summary = train_seeds(list(found), seeds, out, jobs=jobs, resume=resume is not None, **how)
    except KeyboardInterrupt:
        say(
            f"stretto: each run is in a folder of its own; go on with the same command and --resume {out} in place of --out"
        )
        raise
    return list(summary["runs"].values())


def _print(summaries: Sequence[Mapping[str, Any]], output: TableOrJson) -> None:
    """Print what came of one run, or of one a seed."""
    from stretto.training.adaptation import BY_EPISODE, adaptation_text

    if output is TableOrJson.JSON:
        print(json.dumps(summaries[0] if len(summaries) == 1 else list(summaries), indent=2))
        return
    for summary in summaries:
        timing = summary["timing"]
        steps = f"{counted(summary['steps'], 'step')} in {timing['seconds']:.1f} s"
        speed = f"{timing['steps_per_second']:,.0f} steps a second"
        print(filled(f"{summary['mission']}, {summary['learner']}, seed {summary['seed']}: {steps}, {speed}"))
        if "evaluation" in summary:
            one = summary["evaluation"]
            print(filled(f"mean return of {one['episodes']} held-out episodes: {short_number(one['return'])}"))
            if BY_EPISODE in one:
                print(filled(adaptation_text(one)))
    print()
    table = Table(box=None, pad_edge=False)
    table.add_column("agent", overflow="fold")
    stopped = any("stopped" in one for summary in summaries for one in summary["agents"].values())
    for heading in ("seed", "return", "updates", "weights", *(["stopped in"] if stopped else ())):
        table.add_column(heading, justify="right")
    for summary in summaries:
        for agent, one in summary["agents"].items():
            figures = short_number(one["return"]), f"{one['updates']:,}", one["weights"][:12]
            why = [escape(one.get("stopped", "-"))] if stopped else []
            table.add_row(escape(agent), str(summary["seed"]), *figures, *why)
    Console(width=screen_width(), highlight=False).print(table)
