"""Losses: how far values are from what they should be, and where that pulls them."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def value_loss(values: Tensor, targets: Tensor, shares: Tensor | None, huber: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of each row, the size of its mean error, both (agents, rows), and the slope of the loss by value.

    `values` (agents, rows, quantiles, branches) are those of the actions taken, `targets` (agents, rows, quantiles) what
    they should be. Errors count as squares up to `huber`, and in proportion beyond. With `shares`, the share of the
    distribution below each of the values, they are pulled towards those quantiles of the targets (quantile regression).
    """
    away = targets[:, :, None, None, :] - values[..., None]  # (agents, rows, quantiles, branches, target's quantiles)
    near = away.clamp(-huber, huber)
    losses, slopes = near * (away - 0.5 * near), -near
    if shares is not None:
        weights = (shares[..., None, None] - (away < 0).float()).abs() / huber
        losses, slopes = losses * weights, slopes * weights
    errors = (targets.mean(-1)[..., None] - values.mean(2)).abs().mean(-1)
    return losses.mean((3, 4)).sum(2), errors, slopes.mean(4) / values.shape[3]
