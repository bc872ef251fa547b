"""Options that several commands have, each written once; and how their values are read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stretto.core import TURNS
from stretto.policies.spec import STRATEGIES

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def whole_number(text: str) -> int:
    """Read a whole number; Typer's own message leaves out the remedy."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"it must be a whole number, got {text!r}") from None


def number(text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"it must be a number, got {text!r}") from None


def jobs_number(text: str) -> int | None:
    """Read a number of processes; `None` is as many as there are cores."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"it must be a whole number or 'auto', got {text!r}") from None


Missions = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        "--mission",
        metavar="MISSION",
        help="A name, a pattern, gym:ID, pz:MODULE, file.py:FUNCTION, file.yaml, or file.yaml:NAME.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--policy",
        metavar="POLICY",
        help="A name, pkg.module:Class, file.py:Class, or class=NAME,data=FILE,kw.x=1.",
    ),
]
SomePolicies = Annotated[
    list[str], typer.Option("-p", "--policy", metavar="POLICY", help="A policy, as for stretto eval.")
]
Variants = Annotated[
    list[str] | None, typer.Option("-v", "--variant", metavar="NAME", help="A variant of the mission's game.")
]
Cogs = Annotated[
    int | None,
    typer.Option("-c", "--cogs", parser=whole_number, metavar="NUMBER", help="How many agents our games have."),
]
MapSeed = Annotated[
    int | None, typer.Option("--map-seed", parser=whole_number, metavar="NUMBER", help="Which map our games have.")
]
Mix = Annotated[bool, typer.Option("--mix", help="Let the policies play together instead of comparing them.")]
Turns = Annotated[
    str,
    typer.Option(
        "--turns", metavar="|".join(TURNS), help="Whether all agents of a game in turns observe before the first acts."
    ),
]
Episodes = Annotated[
    int, typer.Option("-e", "--episodes", parser=whole_number, metavar="NUMBER", help="Episodes of each mission.")
]
Steps = Annotated[
    int | None,
    typer.Option("-s", "--steps", parser=whole_number, metavar="NUMBER", help="The most steps of an episode."),
]
Seed = Annotated[
    int, typer.Option("--seed", parser=whole_number, metavar="NUMBER", help="The seed of everything random.")
]
Only = Annotated[
    list[int] | None,
    typer.Option("--only", parser=whole_number, metavar="NUMBER", help="Play just this episode; can be repeated."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        parser=jobs_number,
        metavar="NUMBER|auto",
        help="How many processes compute: by default one a core; 0 is none but this one.",
    ),
]
Strategy = Annotated[
    str, typer.Option("--strategy", metavar="NAME", help=f"Where agents choose: {', '.join(STRATEGIES)}.")
]
AllowImport = Annotated[bool, typer.Option("--allow-import", help="Let mission files name code of their own.")]
ParallelPolicy = Annotated[
    bool, typer.Option("--parallel-policy", help="Give cores to agents before giving them to episodes.")
]
ActionTimeout = Annotated[
    float | None,
    typer.Option(
        "--action-timeout-ms", parser=number, metavar="NUMBER", help="The most that an agent may compute for a step."
    ),
]
Overage = Annotated[
    float,
    typer.Option(
        "--overage-ms", parser=number, metavar="NUMBER", help="By how much it may exceed that, in all of an episode."
    ),
]
HangSeconds = Annotated[
    float,
    typer.Option("--hang-seconds", parser=number, metavar="NUMBER", help="After how long a step counts as hung."),
]
NativeThreads = Annotated[
    int,
    typer.Option(
        "--native-threads", parser=whole_number, metavar="NUMBER", help="Threads of BLAS and torch in a computation."
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", help="What torch computes on, for policies that let it be chosen: cpu, cuda:1, mps."
    ),
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Ask torch for deterministic algorithms, in every process.")
]
Failed = Annotated[
    str,
    typer.Option(
        "--failed", metavar="exclude|worst", help="A failed episode is left out for all, or counts as the worst seen."
    ),
]
Output = Annotated[Format, typer.Option("--format", help="How results are printed.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="A new folder for records, summary and report.")]
Resume = Annotated[
    Path | None, typer.Option("--resume", metavar="DIR", help="Go on with what was begun in this folder.")
]
Video = Annotated[
    int,
    typer.Option(
        "--video",
        parser=whole_number,
        metavar="NUMBER",
        show_default=False,
        help="Film the first so many episodes, into the folder.",
    ),
]
Trace = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="[FILE]",
        help="Record what every process does, for Perfetto: in FILE, or in the folder's trace.json.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
