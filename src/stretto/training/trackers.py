"""Trackers: TensorBoard and Weights & Biases, which are told what `metrics.jsonl` is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from stretto.errors import UsageError
from stretto.training.settings import TrackingSettings

TENSORBOARD, WANDB = "tensorboard", "wandb"


class Tracker(Protocol):
    """Takes the figures of intervals in."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Take the figures of an interval in, as they stand in `metrics.jsonl`."""

    def close(self) -> None:
        """Write what is not written yet."""


def check_tracking(settings: TrackingSettings, out: str | Path | None) -> None:
    """Refuse trackers that cannot be used: they write into the folder of a run, and come with extras."""
    for name, wanted in ((TENSORBOARD, settings.tensorboard), (WANDB, settings.wandb is not None)):
        if wanted and out is None:
            raise UsageError(f"tracking.{name} writes into the folder of a run, got none; pass out, or --out DIR")
        if wanted and find_spec(name) is None:
            raise UsageError(f"tracking.{name} needs {name}, which is not installed; pip install 'stretto[{name}]'")


def trackers_of(settings: TrackingSettings, out: Path, plan: Mapping[str, Any]) -> list[Tracker]:
    """Return the trackers that settings ask for."""
    found: list[Tracker] = []
    if settings.tensorboard:
        found.append(_TensorBoard(out))
    if settings.wandb is not None:
        found.append(_WeightsAndBiases(settings, out, plan))
    return found


def figures_of(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the figures of an interval, each with a name that has its group in front."""
    for agent, figures in row["agents"].items():
        yield from ((f"{agent}/{name}", value) for name, value in figures.items() if value is not None)
    if "evaluation" in row:
        yield "evaluation/return", row["evaluation"]["return"]
        yield from ((f"evaluation/{agent}", value) for agent, value in row["evaluation"]["agents"].items())
    yield from ((f"custom/{name}", value) for name, value in row.get("custom", {}).items())
    timing = row["timing"]
    yield "timing/steps_per_second", timing["steps_per_second"]
    yield from ((f"timing/{phase}", share) for phase, share in timing["shares"].items())
    yield from ((f"overlap/{name}", value) for name, value in timing.get("overlap", {}).items())


class _TensorBoard:
    def __init__(self, out: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(out / TENSORBOARD))

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in figures_of(row):
            self._writer.add_scalar(name, value, row["steps"])

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, settings: TrackingSettings, out: Path, plan: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=settings.wandb,
            name=out.name,
            dir=str(out),
            mode=settings.wandb_mode,
            config=dict(plan["config"]),
            settings=wandb.Settings(console="off", silent=True),  # what a run prints is not its business
        )

    def add(self, row: Mapping[str, Any]) -> None:
        self._run.log(dict(figures_of(row)), step=row["steps"])

    def close(self) -> None:
        self._run.finish()
