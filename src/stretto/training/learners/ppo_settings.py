"""How PPO learns."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.policies.networks.limits import AtLeastZero, Positive, Share, Whole
from stretto.policies.networks.network import NetworkSettings
from stretto.training.schedules import Schedule


@dataclass(frozen=True)
class PpoSettings:
    """How PPO learns: `rows` of each environment are collected, and learned from `epochs` times in batches of `batch`.

    A network with a memory learns from `sequence` consecutive rows at a time; a batch has as many sequences as fit.
    """

    rows: Whole = 128
    batch: Whole = 64
    epochs: Whole = 10
    sequence: int = 16
    learning_rate: Schedule = field(default_factory=lambda: Schedule(3e-4))
    discount: Share = 0.99
    smoothing: Share = 0.95
    clip: Positive = 0.2
    clip_values: Positive | None = None
    entropy: Schedule = field(default_factory=lambda: Schedule(0.0))
    value_weight: AtLeastZero = 0.5
    most_gradient: Positive = 0.5
    most_divergence: Positive | None = None
    normalize_observations: bool = False
    normalize_rewards: bool = False
    network: NetworkSettings = field(default_factory=NetworkSettings)
