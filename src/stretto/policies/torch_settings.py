"""What is asked of torch for a whole evaluation: a device, and deterministic algorithms. Nothing here imports it early."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stretto.errors import UsageError

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_INSTALL = "pip install 'stretto[train]'"


def check_device(device: str) -> None:
    """Refuse a device that torch cannot use in this process."""
    kind, colon, number = device.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (colon and not number.isdecimal()):
        raise UsageError(f"a device is cpu, cuda, cuda:NUMBER or mps, got {device!r}; leave it out for the CPU")
    if kind == "cpu":
        return
    if not torch_installed():
        raise UsageError(f"a device other than cpu needs torch, which is not installed, got {device!r}; {_INSTALL}")
    import torch

    counts = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    if int(number or 0) >= counts[kind]:
        there = [f"{name}:{i}" for name, count in counts.items() for i in range(count)]
        raise UsageError(
            f"a device must be one that torch {torch.__version__} can use here, which are "
            f"{', '.join(['cpu', *there])}, got {device!r}; choose one of them"
        )


def ask_for_determinism() -> None:
    """Let torch use deterministic algorithms alone in this process, whoever imports it; nothing if it is not installed."""
    if not torch_installed():
        return
    os.environ.setdefault(_WORKSPACE, ":4096:8")  # cuBLAS reads it once, when CUDA is first used
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def determinism_note() -> str:
    """Say what deterministic algorithms do not give."""
    if not torch_installed():
        return "torch is not installed, so that there is nothing to be asked of it"
    return (
        "torch raises where it knows no deterministic algorithm, and its numbers may still differ between devices, "
        "CPUs and versions"
    )


@contextmanager
def torch_as_before() -> Iterator[None]:
    """Undo what `ask_for_determinism` did to this process while the body ran in it."""
    workspace, settings = os.environ.get(_WORKSPACE), _settings(sys.modules.get("torch"))
    try:
        yield
    finally:
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
        torch = sys.modules.get("torch")
        if torch is not None and _settings(torch) != settings:
            enabled, warn_only, benchmark = settings
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
            torch.backends.cudnn.benchmark = benchmark


def _settings(torch: Any) -> tuple[bool, bool, bool]:
    if not hasattr(
        torch, "are_deterministic_algorithms_enabled"
    ):  # not imported, or no torch: those that it begins with
        return False, False, False
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )


def torch_installed() -> bool:
    """Whether torch can be imported; it is not imported for it. A single file of that name stands in for it and is none."""
    spec = importlib.util.find_spec("torch")
    return spec is not None and spec.submodule_search_locations is not None
