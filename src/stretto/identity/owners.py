"""Whose code a file is. Identities, tracebacks and warnings all ask here."""

from __future__ import annotations

import os
import sysconfig
from enum import Enum, auto
from functools import cache
from pathlib import Path

_PACKAGES = {"site-packages", "dist-packages"}
_OURS = Path(__file__).resolve().parents[1]


class Owner(Enum):
    """Whose code a file is."""

    USER = auto()  # whoever runs this may edit it
    STRETTO = auto()
    PYTHON = auto()  # of the standard library
    PACKAGE = auto()  # of another package that is installed


@cache
def owner_of(file: str) -> Owner:
    """Say whose code a file is, by its path alone: it may lie on another machine."""
    path = Path(file).resolve()
    if _OURS in path.parents:
        return Owner.STRETTO
    if is_installed(path):
        return Owner.PACKAGE
    return Owner.PYTHON if str(path).startswith(_standard_library()) else Owner.USER


def is_users(file: str | None) -> bool:
    """Whether code is the user's own; `None` stands for code that has no file."""
    return file is not None and owner_of(file) is Owner.USER


def is_installed(path: Path) -> bool:
    """Whether a file lies where packages are installed; a checkout of this package does not."""
    return not _PACKAGES.isdisjoint(path.resolve().parts)


@cache
def _standard_library() -> tuple[str, ...]:
    return tuple({str(Path(sysconfig.get_path(name)).resolve()) + os.sep for name in ("stdlib", "platstdlib")})
