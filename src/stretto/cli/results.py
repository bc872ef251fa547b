"""What came of an evaluation, on a terminal or for another program."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress

from stretto.cli.options import Format
from stretto.cli.text import WIDTH, filled, screen_width
from stretto.evaluation.playing.tracebacks import without_our_frames
from stretto.evaluation.records import EpisodeFailure
from stretto.evaluation.report.answer import answer_of
from stretto.evaluation.report.failures import FailureGroup, group_failures
from stretto.evaluation.report.report import Report
from stretto.evaluation.report.wording import listed, shorten

_LONGEST_NAME = 30
_MOST_FAILURES = 3
_LONGEST_PLACE = 45


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
            _print_answer(report)
            _print_failures(report)


def _everything(report: Report) -> dict[str, object]:
    return {**report.to_json(), "episodes": [record.as_json() for record in report.records]}


def _print_answer(report: Report) -> None:
    """Print who is best, and why; one policy by itself is compared with nobody."""
    answer = answer_of(report.summary)
    if len(answer.reasons) > (len(report.summary.labels) == 1):
        print()
        for sentence in (answer.headline, *answer.reasons):
            print(filled(sentence))
    if unscaled := report.summary.unscaled:
        low, high = report.summary.normalize or ("", "")
        print(filled(f"there are no scores on {listed(unscaled)}: {high} is no better than {low} there"))


def _print_failures(report: Report) -> None:
    """Print the failures in groups, each with what shows one of them again."""
    groups = group_failures(report.records)
    if not groups:
        return
    failed = sum(len(group.records) for group in groups)
    none = "are left out for all policies" if len(report.summary.labels) > 1 else "do not count"
    left_out = f"{none} (with --failed worst they count as the worst seen)"
    counts = "count as the worst seen" if report.summary.failed == "worst" else left_out
    print(f"\n{filled(f'{failed} of {len(report.records)} episodes failed, and {counts}')}")
    for group in groups[:_MOST_FAILURES]:
        _print_group(group, alone=len(report.records) == 1)
    if left := groups[_MOST_FAILURES:]:
        print(f"... and {sum(len(group.records) for group in left)} more that failed otherwise")


def _print_group(group: FailureGroup, *, alone: bool) -> None:
    failure, record = group.first, group.records[0]
    names = ", ".join(shorten(name, _LONGEST_NAME) for name in (record.mission, record.label))
    print(filled(f"failed: {names}, episode {record.episode}: {' '.join(failure.message.split())}"))
    file, _, line = group.place.rpartition(":")
    place = f"at {shorten(file, _LONGEST_PLACE)}:{line}, " if file else ""
    step = "" if failure.step is None else f"step {failure.step}, "
    print(f"  {place}{step}seed {record.seed}")
    if alone:  # one that is played again, to see why
        print(textwrap.indent(without_our_frames(failure.traceback), "  "))
    if len(group.records) > 1:
        where = "; ".join(f"{mission} {numbers}" for mission, numbers in group.where().items())
        print(filled(f"  in {len(group.records)} episodes: {where}"))
    print(_again(failure))


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
