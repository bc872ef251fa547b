"""What takes long, and can begin before the command line is read in full: its own imports take as long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from stretto.errors import StrettoError
from stretto.missions.cogames import start_early as start_cogames

_MISSION = ("-m", "--mission")
_JOBS = ("-j", "--jobs")


def start_early(words: Sequence[str]) -> None:
    """Let workers' launcher get ready for the missions of `stretto eval`, if they are worth it and workers will play.

    This is a guess. Whatever is wrong with the words is found out, and told, where they are read.
    """
    if not words or words[0] != "eval" or "0" in _values(words, _JOBS):
        return
    with suppress(StrettoError):
        start_cogames(list(_values(words, _MISSION)))


def _values(words: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Return the values of an option, as they are written."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            yield value if equals else following
