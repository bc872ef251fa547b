"""Layers: products and activations of many networks at once, with their gradients written out.

On the CPU numpy computes products, layer by layer and network by network: its library takes less time than torch's for
matrices of this size, above all for the narrow ones of outputs (a quarter), and a network needs no copy of what it sees.
What a network gets does not depend on who else is there, because each product is a call of its own. Elsewhere torch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.spaces import Array

ACTIVATIONS = "tanh", "relu"


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
    last = len(weights) - 1
    found = [rows if _is_here(rows) else _spread(rows, weights[0])]
    with np.errstate(all="ignore"):  # whoever learns looks for what is not finite
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            made = _product(found[-1], weight, bias)
            found.append(made if layer == last and not activated else _activated(made, activation))
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
    with np.errstate(all="ignore"):
        for layer in range(len(weights) - 1, -1, -1):
            torch.sum(gradient, 1, keepdim=True, out=by_bias[layer])
            _write_products(went[layer], gradient, by_weight[layer])
            if layer or to_agents:
                gradient = torch.bmm(gradient, weights[layer].transpose(1, 2))
            if layer:
                gradient = pulled(gradient, went[layer], activation)
    return _of_agents(gradient, to_agents) if to_agents else None


def back_to_rows(
    gradient: Tensor, went: Sequence[Tensor], activation: str, weights: Sequence[Tensor], *, to_agents: int
) -> Tensor:
    """Return the gradient of the rows of so many agents alone: weights and biases are taken as they are."""
    for layer in range(len(weights) - 1, -1, -1):
        gradient = torch.bmm(gradient, weights[layer].transpose(1, 2))
        if layer:
            gradient = pulled(gradient, went[layer], activation)
    return _of_agents(gradient, to_agents)


def _of_agents(gradient: Tensor, agents: int) -> Tensor:
    """Return the sum over the networks of each agent."""
    return gradient if gradient.shape[0] == agents else gradient.view(agents, -1, *gradient.shape[1:]).sum(1)


_TANH_BACKWARD: Any = torch.ops.aten.tanh_backward.grad_input


def _activated(made: Tensor, activation: str) -> Tensor:
    """Return what an activation makes of the outputs of a layer; overwrites them."""
    if activation == "relu":
        return made.relu_()
    if not _is_here(made):
        return made.tanh_()
    array = made.numpy()
    np.tanh(array, out=array)  # half of the time of torch's
    return made


def pulled(gradient: Tensor, activated: Tensor, activation: str) -> Tensor:
    """Return the gradient before an activation, given the one after it and what came out of it; overwrites the first."""
    if activation == "relu":
        return gradient.mul_(activated > 0)
    found: Tensor = _TANH_BACKWARD(gradient, activated, grad_input=gradient)
    return found


def _is_here(rows: Tensor) -> bool:
    """Return whether numpy can compute with arrays like this one; a network that is written to a file is torch's alone."""
    return rows.device.type == "cpu" and not torch.compiler.is_exporting()


def _spread(rows: Tensor, weight: Tensor) -> Tensor:
    """Return rows once for each network."""
    (agents, count, width), networks = rows.shape, weight.shape[0]
    if networks == agents:
        return rows
    return rows[:, None].expand(agents, networks // agents, count, width).reshape(networks, count, width)


def _product(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what a layer makes of rows before its activation."""
    if not _is_here(rows):
        return torch.baddbmm(bias, rows, weight)
    agents, networks = rows.shape[0], weight.shape[0]
    found = rows.new_empty(networks, rows.shape[1], weight.shape[2])
    products = _by_agent(found, agents)
    np.matmul(_by_agent(rows, agents), _by_agent(weight, agents), out=products)
    np.add(products, _by_agent(bias, agents), out=products)
    return found


def _write_products(rows: Tensor, gradient: Tensor, out: Tensor) -> None:
    """Write the products of all rows with their gradients, summed up, for each network."""
    if not _is_here(rows):
        torch.bmm(rows.transpose(1, 2), gradient, out=out)
        return
    agents = rows.shape[0]
    np.matmul(_by_agent(rows, agents).swapaxes(2, 3), _by_agent(gradient, agents), out=_by_agent(out, agents))


def _by_agent(array: Tensor, agents: int) -> Array:
    """Return what there is of each network as (agents, networks of one, ...), without a copy."""
    found = array.detach().numpy()
    return found.reshape(agents, -1, *found.shape[1:])  # networks lie evenly apart; torch's view takes 0.8 µs longer


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
