"""The settings of SAC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from stretto.policies.networks.limits import Positive, PositiveShare, Share, Whole
from stretto.policies.networks.soft_actors import SoftNetworkSettings
from stretto.training.schedules import Schedule


@dataclass(frozen=True)
class SacSettings:
    """How SAC learns: `rows` of each environment are collected, then `updates` follow, each with a batch of `batch`.

    Until an agent has made `learning_starts` decisions it does anything; its buffer keeps the last `buffer` steps. Target
    critics move by `target_average` in each update. The `temperature` says what entropy is worth; it begins there, and if
    `tune_temperature`, it is moved so that actions have the `target_entropy` (`null`: -1 for each number of an action).
    A network with a memory learns from chunks of `chunk` rows, so many that they have `batch` rows together; the `burn_in`
    rows before each bring its memory up to date.
    """

    rows: Whole = 8
    updates: Whole = 64
    batch: Whole = 256
    buffer: Whole = 1_000_000
    learning_starts: Whole = 1_000
    learning_rate: Schedule = field(default_factory=lambda: Schedule(3e-4))
    discount: Share = 0.99
    target_average: PositiveShare = 0.005
    temperature: Positive = 1.0
    tune_temperature: bool = True
    target_entropy: float | None = None
    chunk: Whole = 32
    burn_in: Annotated[int, Ge(0)] = 0
    most_gradient: Positive | None = None
    network: SoftNetworkSettings = field(default_factory=SoftNetworkSettings)
