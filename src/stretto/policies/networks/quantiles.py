"""Quantiles: how a network is asked for a quantile of its outputs, as in implicit quantile networks (Dabney et al., 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

COSINES = 64
"""How many cosines stand for a share of a distribution."""


def with_shares(hidden: Tensor, shares: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return hidden numbers once for each share of the distribution, scaled by what a layer makes of its cosines.

    `hidden` is (towers, rows, width), `shares` (towers, rows, how many); the result is (towers, rows x how many, width).
    """
    towers, count, width = hidden.shape
    cosines = torch.cos(shares[..., None] * (math.pi * torch.arange(1, COSINES + 1)))
    scale = torch.relu_(torch.baddbmm(bias, cosines.view(towers, -1, COSINES), weight))
    return (hidden[:, :, None] * scale.view(towers, count, -1, width)).view(towers, -1, width)
