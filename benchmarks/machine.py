"""Which machine, and with which versions: a figure means little without them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from stretto.budget import available_cores


def describe(*packages: str) -> str:
    """Return one line about this machine and the packages that are installed."""
    versions = [f"{name} {version}" for name in packages if (version := _version(name)) is not None]
    parts = [_processor(), f"{available_cores()} cores", f"Python {platform.python_version()}", *versions]
    return ", ".join(parts)


def load_warning() -> str | None:
    """Say so if other programs are busy, which makes ratios noisy."""
    load = os.getloadavg()[0]
    if load < 0.5:
        return None
    return f"the load of this machine was {load:.1f} at the start; on a busy machine figures are noisy and low"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
