"""The clipped objective of PPO: its gradient, written out, and the minibatches that it is computed of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.policies.networks.heads import Head
from stretto.policies.networks.network import Network
from stretto.policies.networks.parameters import CHUNK, padded
from stretto.spaces import Array
from stretto.training.learners.ppo_settings import PpoSettings
from stretto.training.sequences import Remembered, Sequences

FIGURES = "policy_loss", "value_loss", "divergence", "clipped", "entropy"
DIVERGENCE = FIGURES.index("divergence")


@dataclass(frozen=True)
class Experience:
    """Rows by agent, (agents, rows, ...): what was seen and done, how likely that was, and how it turned out.

    What was seen may have further rows behind those.
    """

    rows: Tensor
    actions: Tensor
    allowed: Tensor | None
    likelihoods: Tensor
    advantages: Tensor
    returns: Tensor
    values: Tensor


@dataclass(frozen=True)
class Batch:
    """A minibatch; `weights` are the shares of an agent's rows in its mean, zero for those that only fill it up."""

    experience: Experience
    weights: Tensor
    remembered: Remembered | None = None


def minibatches(
    streams: Sequence[np.random.Generator | None], sequences: Sequences, experience: Experience, size: int
) -> Iterator[tuple[Batch, Array]]:
    """Yield all sequences in which agents acted, `size` rows at a time, and which agents have any in a batch.

    They are shuffled by each agent's own stream; an agent without one has none. Advantages are normalized in each batch.
    What was seen, which may be wide, is copied batch by batch, so that it is still in the cache when it is learned from. All
    else is put in order once. A batch is filled up to a multiple of what elementwise functions take at a time.
    """
    numbers, there = _dealt(streams, sequences, size)
    agents, batches, _ = numbers.shape
    if not batches:
        return
    rows = sequences.rows[numbers].swapaxes(2, 3).reshape(agents, -1)  # in each batch: time, then sequences
    acted = np.take_along_axis(sequences.acted, rows, 1).reshape(agents, batches, sequences.length, -1)
    by_batch = (acted & there[:, :, None]).reshape(agents, batches, -1).astype(np.float32)
    size = by_batch.shape[2]
    device = experience.rows.device
    shares = torch.from_numpy(by_batch / np.maximum(by_batch.sum(2, keepdims=True), 1)).to(device)
    actions, allowed, likelihoods, advantages, returns, values = _in_order(experience, rows)
    advantages = _normalized(advantages.view(shares.shape), shares).view(rows.shape)
    weights, has_rows = shares.view(rows.shape), by_batch.max(2) > 0
    seen = experience.rows.flatten(0, 1)
    places = _flat(rows, experience.rows.shape[1]).reshape(agents, batches, size).swapaxes(0, 1).reshape(batches, -1)
    for k, mine in enumerate(torch.from_numpy(places).to(device)):
        some = slice(k * size, (k + 1) * size)
        part = Experience(
            seen.index_select(0, mine).view(agents, size, *seen.shape[1:]),
            actions[:, some],
            None if allowed is None else allowed[:, some],
            likelihoods[:, some],
            advantages[:, some],
            returns[:, some],
            values[:, some],
        )
        remembered = sequences.remembered(numbers[:, k], there[:, k])
        remembered = None if remembered is None else remembered.to(device)
        yield Batch(part, weights[:, some], remembered), has_rows[:, k]


def _in_order(experience: Experience, rows: Array) -> Iterator[Any]:
    """Yield all but what was seen, in the order of `rows`, the numbers of each agent's rows."""
    index = torch.from_numpy(_flat(rows, experience.actions.shape[1]).reshape(-1)).to(experience.actions.device)
    outcomes = experience.likelihoods, experience.advantages, experience.returns, experience.values
    for one in (experience.actions, experience.allowed, *outcomes):
        yield None if one is None else one.flatten(0, 1).index_select(0, index).view(*rows.shape, *one.shape[2:])


def _flat(rows: Array, count: int) -> Array:
    """Return the numbers of rows among those of all agents, of which each has `count`."""
    return rows + np.arange(len(rows))[:, None] * count


def _dealt(streams: Sequence[np.random.Generator | None], sequences: Sequences, size: int) -> tuple[Array, Array]:
    """Return the numbers of sequences and where there are any: (agents, batches, sequences)."""
    orders: list[Array] = [
        np.zeros(0, np.int64) if stream is None else stream.permutation(np.flatnonzero(mine[sequences.rows].any(1)))
        for stream, mine in zip(streams, sequences.acted, strict=True)
    ]
    count = max(1, size // sequences.length)
    width = padded(count, CHUNK // math.gcd(CHUNK, sequences.length))
    shape = len(orders), -(-max(map(len, orders)) // count), width
    numbers, there = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    for agent, order in enumerate(orders):
        batch, place = np.divmod(np.arange(len(order)), count)
        numbers[agent, batch, place], there[agent, batch, place] = order, True
    return numbers, there


def _normalized(advantages: Tensor, shares: Tensor) -> Tensor:
    centred = advantages - (advantages * shares).sum(-1, keepdim=True)
    spread = (centred * centred * shares).sum(-1, keepdim=True).sqrt_()
    return centred / spread.add_(1e-8)


class ClippedObjective:
    """Lets a network's gradient be that of the clipped policy loss, the value loss and the entropy, agent by agent."""

    def __init__(self, network: Network, head: Head, settings: PpoSettings, entropy_weight: float) -> None:
        self._network, self._head, self._settings, self._entropy_weight = network, head, settings, entropy_weight

    def differentiate(self, batch: Batch, *, figures: bool) -> Tensor | None:
        """Write the gradient of a batch; return `figures` by name and agent, if asked to."""
        settings, network = self._settings, self._network
        known, weights, low, high = batch.experience, batch.weights, 1 - settings.clip, 1 + settings.clip
        if batch.remembered is None:
            seen = network.see(known.rows, None)[0]
        else:
            seen = batch.remembered.seen(network, known.rows)
        going = network.go_through(seen)
        outputs = going.outputs
        with torch.no_grad():
            scored = self._head.score(outputs[:, 0], network.scales, known.actions, known.allowed)
            apart = scored.likelihoods - known.likelihoods
            ratio = apart.exp()
            gained, limited = ratio * known.advantages, ratio.clamp(low, high) * known.advantages
            # Where the clipped term is the smaller one it is constant: no gradient passes.
            by_likelihood = torch.where(gained <= limited, gained, 0.0) * -weights
            by_entropy = weights * -self._entropy_weight if self._entropy_weight else None
            by_outputs, by_scales = scored.pull(by_likelihood, by_entropy)
            gradient = torch.zeros_like(outputs)
            gradient[:, 0, :, : by_outputs.shape[-1]] = by_outputs
            wrong = self._errors(outputs[:, 1, :, 0], known)
            torch.mul(wrong, weights * (2 * settings.value_weight), out=gradient[:, 1, :, 0])
            going.back(gradient, by_scales)
            if not figures:
                return None
            outside = ((ratio < low) | (ratio > high)).float()
            divergence = ratio - 1 - apart
            each = -torch.minimum(gained, limited), wrong * wrong, divergence, outside, scored.entropies()
            return torch.stack([(one * weights).sum(1) for one in each])

    def _errors(self, values: Tensor, known: Experience) -> Tensor:
        """Return how far values are above what was returned; where their change is clipped, nothing pulls at them."""
        most = self._settings.clip_values
        wrong = values - known.returns
        if most is None:
            return wrong
        change = values - known.values
        limited = known.values + change.clamp(-most, most) - known.returns
        return torch.where((change.abs() <= most) | (wrong.abs() > limited.abs()), wrong, 0.0)
