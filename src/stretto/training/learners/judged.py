"""Judged: what actions seem to be worth, beside what they turned out to be worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Judged:
    """What actions seem to be worth, (agents, rows, quantiles, branches), and their `targets`, (agents, rows, quantiles).

    `taken` can be differentiated. `shares` says which quantiles the first are. `weights`, (agents, rows), is how much each
    row counts; `batch` is what was drawn.
    """

    taken: Tensor
    targets: Tensor
    shares: Tensor | None
    weights: Tensor
    batch: Any


Streams = Sequence[np.random.Generator]


def draw_shares(streams: Streams, rows: int, quantiles: int | None) -> Tensor | None:
    """Draw which quantiles are looked at in each row, from the agents' streams; `None` for networks that have none."""
    if quantiles is None:
        return None
    return torch.from_numpy(np.stack([stream.random((rows, quantiles), np.float32) for stream in streams]))
