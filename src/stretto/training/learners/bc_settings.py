"""How behaviour cloning learns."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.policies.networks.limits import Positive, Whole
from stretto.policies.networks.network import NetworkSettings
from stretto.training.schedules import Schedule


@dataclass(frozen=True)
class BcSettings:
    """How behaviour cloning learns: `rows` of `num_envs` recordings are read, and learned from in batches of `batch`."""

    rows: Whole = 128
    batch: Whole = 64
    learning_rate: Schedule = field(default_factory=lambda: Schedule(1e-3))
    most_gradient: Positive = 1.0
    normalize_observations: bool = True
    network: NetworkSettings = field(default_factory=NetworkSettings)
