"""What the text of a traceback, or of the stack of a process that crashed or hung, tells of the user's code."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

_OURS = Path(__file__).parent.parent
_PYTHONS = Path(sysconfig.get_path("stdlib"))


def last_place(traceback: str) -> str:
    """Return where the user's code raised, crashed or hung: the file and line nearest to that of what is not ours.

    `traceback` is that of an exception, or what a process that crashed or hung wrote of its threads, the innermost calls
    first. Files of Python itself count only where there are no others.
    """
    _, mark, stack = traceback.partition("Current thread")
    if mark:
        traceback = stack.partition("\n\n")[0]
    places = [
        (Path(file), f"{file}:{line}")
        for file, line in re.findall(r'File "([^"<]+)", line (\d+)', traceback)
        if _OURS not in Path(file).parents
    ]
    if mark:
        places.reverse()
    users = [place for path, place in places if not _is_pythons(path)] or [place for _, place in places]
    return users[-1] if users else ""


def _is_pythons(path: Path) -> bool:
    return _PYTHONS in path.parents and "site-packages" not in path.parts


def without_addresses(text: str) -> str:
    """Return the text of a stack, or of what was raised, without what is another number in every process."""
    text = re.sub(r"(?m)^((?:Current t|T)hread) 0x[0-9a-f]+", r"\1", text)
    return re.sub(r" at 0x[0-9a-f]+>", ">", text)
