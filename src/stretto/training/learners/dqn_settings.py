"""The settings of DQN."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from stretto.policies.networks.limits import AtLeastZero, Positive, Share, Whole
from stretto.policies.networks.values import ValueNetworkSettings
from stretto.training.schedules import Schedule


@dataclass(frozen=True)
class DqnSettings:
    """How DQN learns: `rows` of each environment are collected, then `updates` follow, each with a batch of `batch`.

    An agent begins to learn once it has `learning_starts` transitions; its buffer keeps the last `buffer` steps. The target
    network becomes the network every `target_interval` updates, or, with `target_average`, moves that share of the way
    towards it in each. `priority_exponent` turns prioritized replay on, `quantiles` makes it an implicit quantile network.
    A network with a memory learns from chunks of `chunk` rows, so many that they have `batch` rows together; the `burn_in`
    rows before each bring its memory up to date.
    """

    rows: Whole = 4
    updates: Whole = 4
    batch: Whole = 64
    buffer: Whole = 100_000
    learning_starts: Whole = 1_000
    learning_rate: Schedule = field(default_factory=lambda: Schedule(5e-4))
    discount: Share = 0.99
    n_steps: Whole = 1
    epsilon: Schedule = field(default_factory=lambda: Schedule(1.0, 0.05, 0.2))
    target_interval: Whole = 200
    target_average: Share | None = None
    double: bool = True
    dueling: bool = False
    priority_exponent: AtLeastZero | None = None
    priority_correction: Schedule = field(default_factory=lambda: Schedule(0.4, 1.0))
    quantiles: Whole | None = None
    chunk: Whole = 16
    burn_in: Annotated[int, Ge(0)] = 8
    huber: Positive = 1.0
    most_gradient: Positive = 10.0
    network: ValueNetworkSettings = field(default_factory=ValueNetworkSettings)
