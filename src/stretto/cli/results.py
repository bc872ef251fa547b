"""How far an evaluation is, and what came of it, on a terminal or for another program."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import stretto
from stretto.cli.options import Format
from stretto.cli.text import WIDTH, filled, screen_width
from stretto.evaluation.records import EpisodeFailure, EpisodeRecord
from stretto.evaluation.report import Report, shorten
from stretto.evaluation.summary import Comparison

_MOST_BARS = 12
_LONGEST_NAME = 30
_MOST_FAILURES = 3
_LONGEST_PLACE = 45
_OURS = Path(stretto.__file__).parent
_MOST_COMPARED = 4
_LEAST_EPISODES = 6
"""Who wins five times of five may well be the worse one: that is seen once in sixteen times by chance."""
_FIRST_LINE_SECONDS, _LAST_LINE_SECONDS = 5.0, 300.0
"""How long it is between two lines about progress at first, and at last: each time it is twice as long."""


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Let what policies and worlds print in the body, in whichever process, go to stderr: stdout is for results."""
    sys.stdout.flush()
    with ExitStack() as after:
        with suppress(OSError, ValueError):  # one of them is closed, or no file
            kept = os.dup(1)
            after.callback(os.close, kept)
            os.dup2(2, 1)
            after.callback(os.dup2, kept, 1)
        after.enter_context(redirect_stdout(sys.stderr))
        yield
        sys.stdout.flush()


@contextmanager
def progress(counts: Mapping[str, int], quiet: bool) -> Iterator[Callable[[EpisodeRecord], None]]:
    """Show on stderr how far it is: a bar a mission in a terminal (if they are few), elsewhere a line now and then."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            one = len(counts) > _MOST_BARS
            shown = {f"{len(counts)} missions": sum(counts.values())} if one else counts
            tasks = {name: bar.add_task(shorten(name, _LONGEST_NAME), total=count) for name, count in shown.items()}
            yield lambda record: bar.advance(next(iter(tasks.values())) if one else tasks[record.mission])
    else:
        total, done = sum(counts.values()), 0
        began, pause = time.monotonic(), _FIRST_LINE_SECONDS
        last = began

        def tell(_: EpisodeRecord) -> None:
            nonlocal done, last, pause
            done, now = done + 1, time.monotonic()
            if now - last >= pause:
                last, pause = now, min(2 * pause, _LAST_LINE_SECONDS)
                left = (now - began) * (total - done) / done
                console.print(f"{done} of {total} episodes after {now - began:.0f} s, about {left:.0f} s left")

        yield tell


def print_report(report: Report, output: Format) -> None:
    """Print a report on stdout."""
    match output:
        case Format.JSON:
            print(json.dumps(_everything(report), indent=2, sort_keys=True))
        case Format.YAML:
            import yaml

            print(yaml.safe_dump(json.loads(json.dumps(_everything(report))), sort_keys=True), end="")
        case Format.CSV:
            print(report.to_csv(), end="")
        case Format.TABLE:
            print(report.table(screen_width()))
            _print_comparisons(report)
            _print_failures(report)


def _everything(report: Report) -> dict[str, object]:
    return {**report.to_json(), "episodes": [record.as_json() for record in report.records]}


def _print_comparisons(report: Report) -> None:
    """Print how the policy with the highest interquartile mean did against the others, on all missions."""
    summary = report.summary
    by_score = sorted((row for row in summary.overall if row.iqm is not None), key=lambda row: row.iqm or 0.0)
    if len(by_score) < 2:
        return
    best = by_score[-1].label
    print()
    for row in by_score[-2 : -2 - _MOST_COMPARED : -1]:
        for one in summary.comparisons:
            if one.mission is None and {one.label, one.baseline} == {best, row.label}:
                print(filled(_compared(one, best, row.label)))


def _compared(one: Comparison, best: str, other: str) -> str:
    names = [shorten(name, _LONGEST_NAME) for name in (best, other)]
    if one.improvement is None or one.improvement_interval is None:
        return f"{names[0]} and {names[1]} have no episode in common"
    shares = [one.improvement, *one.improvement_interval]
    better, low, high = (round(100 * share) for share in shares)
    if one.label == other:
        better, low, high = 100 - better, 100 - high, 100 - low
    share = f"{better}% of {one.episodes} episodes"
    if one.episodes < _LEAST_EPISODES:
        return f"{names[0]} is better than {names[1]} in {share}, which are too few to tell"
    if low > 50:
        return f"{names[0]} beats {names[1]} in {share} ({low} to {high}%)"
    return f"{names[0]} and {names[1]} cannot be told apart: it is better in {share} ({low} to {high}%)"


def _print_failures(report: Report) -> None:
    """Print some of the failures, of different kinds if there are, each with what shows it again."""
    failures = [(record, record.failure) for record in report.records if record.failure is not None]
    if not failures:
        return
    left_out = "do not count (with --failed worst they count as the worst seen)"
    counted = "count as the worst seen" if report.plan.get("failed") == "worst" else left_out
    print(f"\n{filled(f'{len(failures)} of {len(report.records)} episodes failed, and {counted}')}")
    different: dict[tuple[str, str], tuple[EpisodeRecord, EpisodeFailure]] = {}
    for record, failure in failures:
        different.setdefault((record.label, failure.message), (record, failure))
    shown = list(different.values())[:_MOST_FAILURES]
    for record, failure in shown:
        names = ", ".join(shorten(name, _LONGEST_NAME) for name in (record.mission, record.label))
        where = f"failed: {names}, episode {record.episode}: "
        print(filled(where + " ".join(failure.message.split())))
        if len(report.records) == 1:  # one that is played again, to see why
            print(textwrap.indent(failure.traceback.rstrip(), "  "))
        elif place := _last_place(failure.traceback):
            step = "" if failure.step is None else f", step {failure.step}"
            print(f"  at {place}{step}, seed {record.seed}")
        print(_again(failure))
    if len(failures) > len(shown):
        print(f"... and {len(failures) - len(shown)} more")


def _last_place(text: str) -> str:
    """Return where an exception was raised, from its traceback: the last line of code that is not ours."""
    places = [
        (file, line)
        for file, line in re.findall(r'File "([^"]+)", line (\d+)', text)
        if _OURS not in Path(file).parents
    ]
    return f"{shorten(places[-1][0], _LONGEST_PLACE)}:{places[-1][1]}" if places else ""


def _again(failure: EpisodeFailure) -> str:
    """Return what plays an episode again, in lines that a shell takes as one command."""
    if not failure.reproduce.startswith("stretto "):
        return filled(f"  again {failure.reproduce}")
    lines, line = [], "  again:"
    for part in _parts(shlex.split(failure.reproduce)):
        if len(line) + len(part) + 3 > WIDTH:
            lines.append(f"{line} \\")
            line = "   "
        line += f" {part}"
    return "\n".join([*lines, line])


def _parts(words: list[str]) -> Iterator[str]:
    """Yield the words of a command as a shell wants them, options together with their values."""
    for word, following in itertools.pairwise([*map(shlex.quote, words), "-"]):
        if word.startswith("-"):
            yield word if following.startswith("-") else f"{word} {following}"
        elif word in ("stretto", "eval"):
            yield word
