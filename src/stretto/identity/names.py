"""What code is called, wherever it lies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def canonical_name(target: Any) -> str:
    """Return what code is called, be it "module:name", "/folder/file.py:name" or an object: never by the folder it lies in.

    `game.py:coins`, `pkg.game:coins` and the function itself are all `game:coins`. What was defined where there is no file,
    as in a notebook, has its own name alone. The name of an object is for the caller's process: in others, what was its
    main program is not.
    """
    if isinstance(target, str):
        where, _, name = target.rpartition(":")
        return f"{Path(where).stem if where.endswith('.py') else where.rpartition('.')[2]}:{name}"
    own = target if hasattr(target, "__module__") else type(target)
    file = getattr(sys.modules.get(own.__module__), "__file__", None)
    if file is None:
        return name_of(target)
    path = Path(file)
    return f"{path.parent.name if path.stem == '__init__' else path.stem}:{name_of(target)}"


def name_of(target: Any) -> str:
    """Return what a function, a class or another object is called."""
    return str(getattr(target, "__name__", type(target).__name__))
