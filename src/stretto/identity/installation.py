"""What computes here: versions of what every result depends on, and the processor."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stretto.identity.owners import is_installed
from stretto.identity.source import digest_of_path

PACKAGES = ("stretto", "numpy", "gymnasium", "torch")
"""Packages whose version is part of every record, if they are installed; none is imported for it."""


@cache
def installation() -> dict[str, str]:
    """Return the versions of this package, of Python and of the packages that numbers come from, and the processor.

    Of a checkout of this package the digest of its source counts too, since its version stays the same while it is edited.
    """
    found = {"python": platform.python_version(), "cpu": _processor()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if not is_installed(Path(__file__)):
        found["stretto source"] = digest_of_path(Path(__file__).parents[1])
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
