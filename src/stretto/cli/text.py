"""Sentences, lists and documentation in lines that fit on a screen, and what is said of errors in other people's code."""

from __future__ import annotations

import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.errors import Place, PolicyFailed, StrettoError, StrettoWarning
from stretto.identity.owners import Owner, owner_of
from stretto.registry import Known

T = TypeVar("T")

WIDTH = 80
"""How wide what we print is, at most."""

MOST_LINES = 4
"""How many lines a list of agents takes, at most."""

_LONGEST_NAME = 24

_MARK = re.compile(r"\s*([-*] |\||>>>|#|\d+\. )")
"""How an item, a row of a table, code, or a heading begins."""


def screen_width() -> int:
    """Return how wide tables are: as wide as the terminal, `WIDTH` at most."""
    return min(WIDTH, Console().width)


def filled(text: str, most_lines: int | None = None) -> str:
    """Return a sentence in lines, those after the first indented; names and paths are never broken."""
    return textwrap.fill(
        text,
        WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
        max_lines=most_lines,
        placeholder=" ...",
    )


def say(text: str) -> None:
    """Tell something on stderr: in a terminal broken between words, elsewhere in one line."""
    print(filled(text) if sys.stderr.isatty() else text, file=sys.stderr)


def say_warnings() -> None:
    """From now on tell warnings of ours in a sentence, without a line of code: there is none of the user's to point at."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, StrettoWarning):
            say(f"stretto: warning: {message}")
        else:
            others(message, category, *place, **more)

    warnings.showwarning = show


def print_usable(what: str, heading: str, known: Mapping[str, Known[T]]) -> list[Known[T]]:
    """Print what is known by name and can be used, tell what cannot, and return the former."""
    good = [one for one in known.values() if one.error is None]
    table = Table(box=None, pad_edge=False)
    table.add_column(what, overflow="fold", max_width=_LONGEST_NAME)
    table.add_column(heading, overflow="fold")
    for one in good:
        table.add_row(escape(one.name), escape(one.summary))
    Console(width=screen_width(), highlight=False).print(table)
    for one in known.values():
        if one.error is not None:
            say(f"stretto: warning: the {what} {one.name} of the package {one.package} cannot be used: {one.error}")
    return good


@contextmanager
def users_code(doing: str) -> Iterator[None]:
    """Mark what is raised in the body as raised by a mission or a policy, as workers do: it is no mistake of ours."""
    try:
        yield
    except StrettoError:
        raise
    except Exception as error:
        if not hasattr(error, "place"):
            with suppress(AttributeError):
                error.place = Place(doing)  # type: ignore[attr-defined]
        raise


def users_frames(error: BaseException) -> str:
    """Return where the user's code raised an error: the lines of a traceback that come after all of this package's."""
    remote = getattr(error.__cause__, "remote_traceback", None)
    if isinstance(error, PolicyFailed):  # it has its own, from whichever process
        _, remote = error.raised
    text = remote or "".join(traceback.format_exception(error))
    frames = re.split(r'(?m)^(?=  File ")', text)[1:]
    ours = [i for i, frame in enumerate(frames) if owner_of(frame.split('"')[1]) is Owner.STRETTO]
    last = max(ours, default=-1)
    theirs = "".join(frames[last + 1 :]) or "".join(frames)
    # What stands less deep is the error itself, which is told elsewhere.
    return "".join(line for line in theirs.splitlines(keepends=True) if line.startswith("  "))


def documentation(text: str) -> str:
    """Return a docstring in lines that fit: lists stay lists, and code and tables keep their lines."""
    lines: list[str] = []
    piece, code = "", False

    def finish() -> None:
        nonlocal piece
        if piece:
            lines.extend(_broken(piece, code=code))
        piece = ""

    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        if code or fence or not line.strip() or _begins(line, piece):
            finish()
        if fence:
            code = not code
        piece = f"{piece} {line.strip()}" if piece else line.rstrip()
        if code or fence or not line.strip():
            lines.extend(_broken(piece, code=True))
            piece = ""
    finish()
    return "\n".join(lines)


def _begins(line: str, piece: str) -> bool:
    """Whether a line begins something new after what stands in `piece`, and does not go on with it."""
    indent = _indent(line)
    after_heading = piece.lstrip().startswith("#")
    deeper = indent and (indent <= _indent(piece) or piece.endswith(":"))
    return bool(_MARK.match(line) or after_heading or deeper)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _broken(piece: str, *, code: bool) -> list[str]:
    if len(piece) <= WIDTH:
        return [piece]
    if piece.lstrip().startswith("|"):  # without what only aligns its columns
        piece = re.sub(r"-{4,}", "---", re.sub(r"\s{2,}", " ", piece))
    indent = " " * _indent(piece)
    hanging = indent + ("  " if code or indent or _MARK.match(piece) else "")
    return textwrap.wrap(piece.strip(), WIDTH, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False)
