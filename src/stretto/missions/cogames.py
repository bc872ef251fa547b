"""Asks cogames, if it is installed, for missions and policies. It takes a second to import, so that is done elsewhere."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.errors import UsageError

if TYPE_CHECKING:
    from stretto.adapters.cogames.found import Found, FoundPolicy

MODULE = "stretto.adapters.cogames.missions"
"""What knows cogames; it imports it."""

PROGRAM = "cogames"

_SECONDS = 120.0
"""How long importing it may take."""


@functools.cache
def is_installed() -> bool:
    """Whether cogames can be imported."""
    return importlib.util.find_spec("cogames") is not None


def start_early() -> None:
    """Let workers' launcher start now, and import cogames: that takes most of the time until an episode begins."""
    from stretto.workers.launcher import launcher

    launcher().preload(MODULE)
    launcher().start()


def find(pattern: str, variants: Sequence[str], cogs: int | None) -> list[Found]:
    """Return the missions of cogames with this name, or like this pattern."""
    found: list[Found] = _ask("find", pattern, tuple(variants), cogs)
    return found


def summaries() -> dict[str, str]:
    """Return what cogames says of each of its missions, by name; nothing if it is not installed."""
    if not is_installed():
        return {}
    found: dict[str, str] = _ask("summaries")
    return found


def find_policy(text: str, device: str | None) -> FoundPolicy | None:
    """Return the policy that a text means to cogames; `None` if it has none of that name."""
    found: FoundPolicy | None = _ask("find_policy", text, device)
    here = str(Path.cwd())
    if found is not None and here not in sys.path:
        sys.path.append(here)  # cogames finds its users' modules in the current folder, wherever they are loaded
    return found


def policy_names() -> list[str]:
    """Return the short names of cogames' policies."""
    found: list[str] = _ask("policy_names")
    return found


def _ask(function: str, *arguments: Any) -> Any:
    """Call a function of `MODULE`: here if it is imported already, else in a process that workers can be forked from."""
    call = functools.partial(_call, function, arguments)
    if MODULE in sys.modules:
        answer = call()
    else:
        from stretto.workers.apart import Problem, run_apart
        from stretto.workers.launcher import launcher

        launcher().preload(MODULE)
        answer = run_apart(call, "asking cogames", _SECONDS)
        if isinstance(answer, Problem):
            raise UsageError(f"cogames is installed and could not be asked: {answer.reason}") from answer.error
    if isinstance(answer, UsageError):
        raise answer
    return answer


def _call(function: str, arguments: Sequence[Any], _: Any = None) -> Any:
    try:
        return getattr(importlib.import_module(MODULE), function)(*arguments)
    except UsageError as error:
        return error
