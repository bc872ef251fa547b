"""What takes long, and can begin before the command line is read in full: its own imports take as long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import gymnasium

from stretto.errors import StrettoError
from stretto.missions import cogames
from stretto.missions.registry import our_missions

_MISSION = ("-m", "--mission")
_JOBS = ("-j", "--jobs")


def start_early(words: Sequence[str]) -> None:
    """Let workers' launcher get ready if `stretto eval` seems to play missions of cogames in workers.

    This is a guess. Whatever is wrong with the words is found out, and told, where they are read.
    """
    if not words or words[0] != "eval" or "0" in _values(words, _JOBS) or not cogames.is_installed():
        return
    if any(map(_may_be_of_cogames, _values(words, _MISSION))):
        with suppress(StrettoError):
            cogames.start_early()


def _values(words: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Return the values of an option, as they are written."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            yield value if equals else following


def _may_be_of_cogames(name: str) -> bool:
    """Whether a mission may be one of cogames: its name says so, or is nobody else's."""
    if name.startswith(f"{cogames.PROGRAM}:"):
        return True
    others = {one for full in gymnasium.registry for one in (full, full.partition("-v")[0])}
    return name.replace(".", "_").isidentifier() and name not in others and name not in our_missions()
