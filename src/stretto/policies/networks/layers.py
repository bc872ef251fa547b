"""Layers: products and activations of many networks at once, with their gradients written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ACTIVATIONS = "tanh", "relu"


def layered(
    rows: Tensor, activation: str, weights: list[Tensor], biases: list[Tensor], *, activated: bool = False
) -> Tensor:
    """Return what layers make of (networks, rows, width) numbers.

    There is an activation after all but the last, and after the last if it is to be `activated`.
    """
    if not torch.is_grad_enabled():
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            rows = _activated(rows, weight, bias, activation)
        if activated:
            return _activated(rows, weights[-1], biases[-1], activation)
        return torch.baddbmm(biases[-1], rows, weights[-1])
    apply: Any = _Layers.apply
    found: Tensor = apply(rows, activation, activated, len(weights), *weights, *biases)
    return found


_ONE = torch.ones(())


def _activated(rows: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return what a layer and its activation make of rows."""
    if activation == "relu":
        return torch.baddbmm(bias, rows, weight).relu_()
    # 2 sigmoid(2 x) - 1: a quarter of the time of torch's own `tanh`, and as exact as float32 lets a number near 1 be.
    return torch.baddbmm(bias, rows, weight, beta=2, alpha=2).sigmoid_().lerp_(_ONE.to(rows.device), -1.0)


def pulled(gradient: Tensor, activated: Tensor, activation: str) -> Tensor:
    """Return the gradient before an activation, given the one after it and what came out of it; overwrites the first."""
    if activation == "relu":
        return gradient.mul_(activated > 0)
    return gradient.sub_(gradient * activated * activated)


class _Layers(torch.autograd.Function):
    """One step of automatic differentiation for all layers: a step for every product costs more than the product."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, activation: str, activated: bool, count: int, *parameters: Tensor) -> Tensor:
        hidden, seen = rows, []
        for layer in range(count):
            seen.append(hidden)
            weight, bias = parameters[layer], parameters[count + layer]
            if layer < count - 1 or activated:
                hidden = _activated(hidden, weight, bias, activation)
            else:
                hidden = torch.baddbmm(bias, hidden, weight)
        ctx.save_for_backward(*seen, *parameters[:count], *([hidden] if activated else []))
        ctx.activation = activation
        return hidden

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved = ctx.saved_tensors
        count = len(saved) // 2
        gradient = gradients[0]
        if len(saved) % 2:  # the last layer was activated, too; autograd's own array must not be overwritten
            gradient = pulled(gradient.clone(), saved[-1], ctx.activation)
        by_weight: list[Tensor | None] = [None] * count
        by_bias: list[Tensor | None] = [None] * count
        for layer in range(count - 1, -1, -1):
            seen = saved[layer]
            by_weight[layer] = torch.bmm(seen.transpose(1, 2), gradient)
            by_bias[layer] = gradient.sum(1, keepdim=True)
            if layer or ctx.needs_input_grad[0]:
                gradient = torch.bmm(gradient, saved[count + layer].transpose(1, 2))
            if layer:
                gradient = pulled(gradient, seen, ctx.activation)
        return (gradient if ctx.needs_input_grad[0] else None, None, None, None, *by_weight, *by_bias)
