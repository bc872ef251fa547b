"""What the text of a traceback, or of the stack of a process that crashed or hung, tells of the user's code."""

from __future__ import annotations

import re

from stretto.identity.owners import Owner, owner_of


def last_place(traceback: str) -> str:
    """Return where the user's code raised, crashed or hung: the file and line nearest to that of what is not ours.

    `traceback` is that of an exception, or what a process that crashed or hung wrote of its threads, the innermost calls
    first. Files of Python itself count only where there are no others.
    """
    _, mark, stack = traceback.partition("Current thread")
    if mark:
        traceback = stack.partition("\n\n")[0]
    places = [
        (owner, f"{file}:{line}")
        for file, line in re.findall(r'File "([^"<]+)", line (\d+)', traceback)
        if (owner := owner_of(file)) is not Owner.STRETTO
    ]
    if mark:
        places.reverse()
    users = [place for owner, place in places if owner is not Owner.PYTHON] or [place for _, place in places]
    return users[-1] if users else ""


def without_our_frames(traceback: str) -> str:
    """Return the same text without the calls of this package, and without what a crash tells of extension modules."""
    kept, ours = [], False
    for line in traceback.splitlines():
        frame = re.match(r'\s*File "([^"]+)", line \d+', line)
        if frame is not None:
            ours = frame[1] == "<string>" or owner_of(frame[1]) is Owner.STRETTO
        elif not line.startswith("    "):  # what is deeper belongs to the frame above
            ours = line.startswith("Extension modules")
        if not ours:
            kept.append(line)
    return "\n".join(kept).rstrip()


def without_addresses(text: str) -> str:
    """Return the text of a stack, or of what was raised, without what is another number in every process."""
    text = re.sub(r"(?m)^((?:Current t|T)hread) 0x[0-9a-f]+", r"\1", text)
    return re.sub(r" at 0x[0-9a-f]+>", ">", text)
