"""Options that several commands have, each written once; and how their values are read."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import BadParameter, Context, Option

from stretto.core import WAYS_TO_PLAY_TURNS
from stretto.errors import UsageError
from stretto.policies.spec import STRATEGIES
from stretto.workers.backends import BACKENDS, RAY

T = TypeVar("T")

_HERE = [name for name in BACKENDS if name != RAY.name]  # that one has an option of its own

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""

RENAMED = {"--parallel-agents": "--parallel-policy"}
"""Options that other programs, or earlier versions of them, have under another name."""


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def command_line(context: Context) -> str | None:
    """Return the command line that the user wrote, for a report to show."""
    return shlex.join(["stretto", *context.obj]) if context.obj else None


class TableOrJson(StrEnum):
    """How results are printed that are no table of records."""

    TABLE = "table"
    JSON = "json"


def _reader(convert: Callable[[str], T], what: str) -> Callable[[str], T]:
    """Return what reads the value of an option; Typer's own messages leave out the remedy."""

    def read(text: str) -> T:
        try:
            return convert(text)
        except ValueError:
            raise BadParameter(f"it must be {what}, got {text!r}") from None

    return read


def whole(*names: str, help: str, **more: Any) -> Any:  # noqa: A002  as Typer calls it
    """Return an option whose value is a whole number."""
    return Option(*names, parser=_reader(int, "a whole number"), metavar="NUMBER", help=help, **more)


def number(*names: str, help: str, metavar: str = "NUMBER") -> Any:  # noqa: A002  as Typer calls it
    """Return an option whose value is a number."""
    return Option(*names, parser=_reader(float, "a number"), metavar=metavar, help=help)


def flag(*names: str, help: str) -> Any:  # noqa: A002  as Typer calls it
    """Return an option without a value."""
    return Option(*names, help=help)


def read_seeds(text: str) -> list[int]:
    """Return the seeds that stand in a text, or in the file that it names."""
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        try:
            words = Path(text).read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--episode-seeds must be numbers or a readable file, got {text!r} ({error}); write 7,8,9 or a file's path"
            ) from None
    strange = [word for word in words if not word.strip().isdecimal()]
    if strange or not words:
        told = f"{strange[0]!r}" if strange else "none"
        raise UsageError(f"--episode-seeds must be whole numbers of at least 0, one a line, got {told} in {text}")
    return [int(word) for word in words]


def read_seed_range(text: str) -> list[int]:
    """Return the seeds of a text such as 0..4 or 3,7."""
    first, dots, last = text.partition("..")
    words = [first, last] if dots else text.split(",")
    if not all(word.strip().isdecimal() for word in words) or (dots and int(first) > int(last)):
        raise UsageError(f"--seeds must be a range or whole numbers, got {text!r}; write 0..4 or 3,7")
    return list(range(int(first), int(last) + 1)) if dots else [int(word) for word in words]


def _jobs(text: str) -> int | None:
    return None if text == "auto" else int(text)


Missions = Annotated[
    list[str] | None,
    Option(
        "-m",
        "--mission",
        metavar="MISSION",
        help="A name, a pattern, gym:ID, pz:MODULE, file.py:FUNCTION, file.yaml, or file.yaml:NAME.",
    ),
]
Policies = Annotated[
    list[str] | None,
    Option(
        "-p",
        "--policy",
        metavar="POLICY",
        help="A name, pkg.module:Class, file.py:Class, or class=NAME,data=FILE,kw.x=1.",
    ),
]
Mission = Annotated[str | None, Option("-m", "--mission", metavar="MISSION", help="A mission, as for stretto eval.")]
Policy = Annotated[str | None, Option("-p", "--policy", metavar="POLICY", help="A policy, as for stretto eval.")]
SomePolicies = Annotated[list[str], Option("-p", "--policy", metavar="POLICY", help="A policy, as for stretto eval.")]
Variants = Annotated[
    list[str] | None, Option("-v", "--variant", metavar="NAME", help="A variant of the mission's game.")
]
Cogs = Annotated[int | None, whole("-c", "--cogs", help="How many agents our games have.")]
MapSeed = Annotated[int | None, whole("--map-seed", help="Which map our games have.")]
Mix = Annotated[bool, Option("--mix", help="Let the policies play together instead of comparing them.")]
Turns = Annotated[
    str,
    Option(
        "--turns",
        metavar="|".join(WAYS_TO_PLAY_TURNS),
        help="Whether all agents of a game in turns observe before the first acts. The last two give what sequential gives.",
    ),
]
Episodes = Annotated[int, whole("-e", "--episodes", help="Episodes of each mission.")]
Backend = Annotated[
    str,
    Option("--backend", metavar="|".join(("auto", *_HERE)), help="Where worlds are stepped; changes no rollout."),
]
Steps = Annotated[int | None, whole("-s", "--steps", help="The most steps of an episode.")]
Seed = Annotated[int, whole("--seed", help="The seed of everything random.")]
Seeds = Annotated[
    str | None,
    Option(
        "--seeds",
        metavar="FIRST..LAST|N,N,...",
        help="Train once for each of these seeds, in parallel where cores allow.",
    ),
]
EpisodeSeeds = Annotated[
    str | None,
    Option(
        "--episode-seeds",
        metavar="FILE|N,N,...",
        help="Play these seeds, one an episode: numbers, or a file with one in each line.",
    ),
]
Only = Annotated[list[int] | None, whole("--only", help="Play just this episode; can be repeated.")]
Jobs = Annotated[
    int | None,
    Option(
        "-j",
        "--jobs",
        parser=_reader(_jobs, "a whole number or 'auto'"),
        metavar="NUMBER|auto",
        help="How many processes compute: by default one a core; 0 is none but this one.",
    ),
]
Cluster = Annotated[
    str | None,
    Option(
        "--cluster",
        metavar="auto|local|ADDRESS",
        help="Compute on the nodes of a Ray cluster; local starts one on this machine and ends it.",
    ),
]
Strategy = Annotated[str, Option("--strategy", metavar="NAME", help=f"Where agents choose: {', '.join(STRATEGIES)}.")]
AllowImport = Annotated[bool, Option("--allow-import", help="Let mission files name code of their own.")]
ParallelPolicy = Annotated[
    bool, Option("--parallel-policy", help="Give cores to agents before giving them to episodes.")
]
ActionTimeout = Annotated[
    float | None, number("--action-timeout-ms", help="The most that an agent may compute for a step.")
]
Overage = Annotated[float, number("--overage-ms", help="By how much it may exceed that, in all of an episode.")]
HangSeconds = Annotated[float, number("--hang-seconds", help="After how long a step counts as hung.")]
NativeThreads = Annotated[int, whole("--native-threads", help="Threads of BLAS and torch in a computation.")]
Device = Annotated[
    str | None,
    Option(
        "--device", metavar="NAME", help="What torch computes on, for policies that let it be chosen: cpu, cuda:1, mps."
    ),
]
Deterministic = Annotated[
    bool, Option("--deterministic", help="Ask torch for deterministic algorithms, in every process.")
]
Failed = Annotated[
    str,
    Option(
        "--failed", metavar="exclude|worst", help="A failed episode is left out for all, or counts as the worst seen."
    ),
]
Normalize = Annotated[
    str | None,
    Option(
        "--normalize", metavar="LOW:HIGH", help="Score rewards from 0 to 1: the means of these two of the policies."
    ),
]
Output = Annotated[Format, Option("--format", help="How results are printed.")]
Out = Annotated[Path | None, Option("--out", metavar="DIR", help="A new folder for records, summary and report.")]
Resume = Annotated[
    Path | None,
    Option("--resume", metavar="DIR", help="Go on with what was begun in this folder; with -e, play more episodes."),
]
AcceptChanges = Annotated[
    bool, Option("--accept-changes", help="Go on although code, weights or versions have changed; the report says so.")
]
Video = Annotated[int, whole("--video", help="Film the first so many episodes, into the folder.", show_default=False)]
Replays = Annotated[
    bool, Option("--replays", help="Let worlds that can write their episodes to files of their own, into the folder.")
]
SaveReplayDir = Annotated[
    Path | None, Option("--save-replay-dir", metavar="DIR", help="The same as --replays, into this folder.")
]
Trace = Annotated[
    str | None,
    Option(
        "--trace",
        metavar="[FILE]",
        help="Record what every process does, for Perfetto: in FILE, or in the folder's trace.json.",
    ),
]
Quiet = Annotated[bool, Option("--quiet", help="Show no progress.")]
