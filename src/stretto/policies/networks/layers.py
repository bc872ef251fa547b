"""Layers: products and activations of many networks at once, with their gradients written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

ACTIVATIONS = "tanh", "relu"

WIDE = 3 << 19
"""A product of so many multiplications for a network is computed network by network. What rows of towers cost to copy and
calls cost to make does not count there; which library multiplies does."""

_LINEAR: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
"""oneDNN's product. It has kernels for AVX-512 on every processor that has it, where those behind `bmm` may take half of its
width: then this takes 0.55 of the time. A call takes 10 µs, so that only large products gain."""


def layered(
    rows: Tensor, activation: str, weights: list[Tensor], biases: list[Tensor], *, activated: bool = False
) -> Tensor:
    """Return what layers make of (agents, rows, width) numbers.

    There is an activation after all but the last, and after the last if it is to be `activated`. Weights are (networks,
    width, next width). With several networks for an agent, one behind the other, each gets its rows.
    """
    if not torch.is_grad_enabled():
        return through(rows, activation, weights, biases, activated=activated)[-1]
    apply: Any = _Layers.apply
    found: Tensor = apply(rows, activation, activated, len(weights), *weights, *biases)
    return found


def through(
    rows: Tensor, activation: str, weights: Sequence[Tensor], biases: Sequence[Tensor], *, activated: bool = False
) -> list[Tensor]:
    """Return what the first layer takes, what each but the last has made of it, and the outputs."""
    found, last = [_spread(rows, weights[0])], len(weights) - 1
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if layer == last and not activated:
            found.append(_product(found[-1], weight, bias))
        else:
            found.append(_activated(found[-1], weight, bias, activation))
    return found


def back(
    gradient: Tensor,
    went: Sequence[Tensor],
    activation: str,
    weights: Sequence[Tensor],
    by_weight: Sequence[Tensor],
    by_bias: Sequence[Tensor],
    *,
    to_agents: int = 0,
) -> Tensor | None:
    """Write the gradients of weights and biases, given the one of the outputs and what `through` has returned.

    Returns the gradient of the rows of so many agents, unless there are none: it ends here.
    """
    for layer in range(len(weights) - 1, -1, -1):
        torch.sum(gradient, 1, keepdim=True, out=by_bias[layer])
        _write_products(went[layer], gradient, by_weight[layer])
        if layer or to_agents:
            gradient = torch.bmm(gradient, weights[layer].transpose(1, 2))
        if layer:
            gradient = pulled(gradient, went[layer], activation)
    if not to_agents:
        return None
    return gradient if gradient.shape[0] == to_agents else gradient.view(to_agents, -1, *gradient.shape[1:]).sum(1)


_ONE = torch.ones(())

_TANH_BACKWARD: Any = torch.ops.aten.tanh_backward.grad_input


def _activated(rows: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return what a layer and its activation make of rows."""
    if activation == "relu":
        return _product(rows, weight, bias).relu_()
    # 2 sigmoid(2 x) - 1: a quarter of the time of torch's own `tanh`, and as exact as float32 lets a number near 1 be.
    return _product(rows, weight, bias, 2).sigmoid_().lerp_(_ONE.to(rows.device), -1.0)


def pulled(gradient: Tensor, activated: Tensor, activation: str) -> Tensor:
    """Return the gradient before an activation, given the one after it and what came out of it; overwrites the first."""
    if activation == "relu":
        return gradient.mul_(activated > 0)
    found: Tensor = _TANH_BACKWARD(gradient, activated, grad_input=gradient)
    return found


def _is_wide(rows: Tensor, weight: Tensor) -> bool:
    if torch.compiler.is_exporting():  # a file takes any number of rows
        return False
    return rows.shape[1] * weight.shape[1] * weight.shape[2] >= WIDE


def _spread(rows: Tensor, weight: Tensor) -> Tensor:
    """Return rows as the first layer takes them: once for each network, unless its product is wide."""
    (agents, count, width), networks = rows.shape, weight.shape[0]
    if networks == agents or _is_wide(rows, weight):
        return rows
    return rows[:, None].expand(agents, networks // agents, count, width).reshape(networks, count, width)


def _product(rows: Tensor, weight: Tensor, bias: Tensor, scale: float = 1) -> Tensor:
    """Return `scale` times what a layer makes of rows before its activation."""
    if not _is_wide(rows, weight):
        return torch.baddbmm(bias, rows, weight, beta=scale, alpha=scale)
    networks = weight.shape[0]
    towers = networks // rows.shape[0]
    if _LINEAR is not None and rows.device.type == "cpu":
        parts = [
            _LINEAR(rows[number // towers], weight[number].T, bias[number, 0], "none", [], "")
            for number in range(networks)
        ]
        found = torch.stack(parts)
        return found if scale == 1 else found.mul_(scale)
    found = rows.new_empty(networks, rows.shape[1], weight.shape[2])
    for mine, part, offset in zip(*(_towers(one, towers) for one in (found, weight, bias)), strict=True):
        torch.baddbmm(offset, rows, part, beta=scale, alpha=scale, out=mine)
    return found


def _write_products(rows: Tensor, gradient: Tensor, out: Tensor) -> None:
    """Write the products of all rows with their gradients, summed up, for each network."""
    towers = gradient.shape[0] // rows.shape[0]
    if towers == 1:
        torch.bmm(rows.transpose(1, 2), gradient, out=out)
        return
    for mine, found in zip(_towers(gradient, towers), _towers(out, towers), strict=True):
        torch.bmm(rows.transpose(1, 2), mine, out=found)


def _towers(array: Tensor, towers: int) -> Sequence[Tensor]:
    """Return the networks of each tower of all agents, as views."""
    return array.view(-1, towers, *array.shape[1:]).unbind(1)


class _Layers(torch.autograd.Function):
    """One step of automatic differentiation for all layers: a step for every product costs more than the product."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, activation: str, activated: bool, count: int, *parameters: Tensor) -> Tensor:
        *went, outputs = through(rows, activation, parameters[:count], parameters[count:], activated=activated)
        ctx.save_for_backward(*went, *parameters, *([outputs] if activated else []))
        ctx.activation, ctx.agents = activation, len(rows)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved = ctx.saved_tensors
        count = len(saved) // 3
        went, weights, biases = saved[:count], saved[count : 2 * count], saved[2 * count : 3 * count]
        by_weight, by_bias = [list(map(torch.empty_like, some)) for some in (weights, biases)]
        to_agents = ctx.agents if ctx.needs_input_grad[0] else 0
        by_outputs = gradients[0]
        if len(saved) > 3 * count:  # the last layer was activated, too; autograd's own array must not be overwritten
            by_outputs = pulled(by_outputs.clone(), saved[-1], ctx.activation)
        gradient = back(by_outputs, went, ctx.activation, weights, by_weight, by_bias, to_agents=to_agents)
        return gradient, None, None, None, *by_weight, *by_bias
