"""Sb3Model: a model of Stable-Baselines3 as a policy."""

from __future__ import annotations

import importlib
import io
import json
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stretto.core import WorldSpec
from stretto.errors import UsageError
from stretto.policies.network_policy import NetworkAgent, NetworkPolicy
from stretto.spaces import Array

__calls_user_code__ = True

_ALGORITHMS = {"dqn": "DQN", "sac": "SAC", "td3": "TD3", "common": "PPO"}
"""The algorithm that loads a model, by the package of its policy. PPO and A2C have the same, and so do TD3 and DDPG."""


class Sb3Model(NetworkPolicy):
    """Acts by a model that Stable-Baselines3 has saved.

    Args:
        world: the world that agents are in.
        deterministic: take the action that seems best, and draw none.
        normalize: the file of a `VecNormalize`, which observations pass before the model sees them.
        content: what the file of the model holds, for a model that was never saved.
        device: where torch computes.
    """

    def __init__(
        self,
        world: WorldSpec,
        *,
        deterministic: bool = True,
        normalize: str | None = None,
        content: bytes | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(world)
        self._deterministic, self._device = deterministic, device
        # It is a pickle, as the model's file holds some, too: whoever names these files trusts them.
        self._normalizer = None if normalize is None else pickle.loads(Path(normalize).read_bytes())
        if content is not None:
            self._load(io.BytesIO(content), "the model")

    def load(self, path: str) -> None:
        """Take the model of a file."""
        self._load(path, path)

    def _load(self, source: Any, name: str) -> None:
        algorithm = _algorithm_of(source, name)
        if hasattr(source, "seek"):
            source.seek(0)
        self._model = algorithm.load(source, device=self._device)

    def compute(self, observations: Any, agents: Sequence[NetworkAgent]) -> Array:
        seen = observations if self._normalizer is None else self._normalizer.normalize_obs(observations)
        actions, _ = self._model.predict(seen, deterministic=self._deterministic)
        return np.asarray(actions)


def _algorithm_of(source: Any, name: str) -> Any:
    """Return the class that loads a model."""
    with zipfile.ZipFile(source) as file:
        about = json.loads(file.read("data"))
    module = str(about.get("policy_class", {}).get("__module__", ""))
    package, _, rest = module.partition(".")
    algorithm = _ALGORITHMS.get(rest.partition(".")[0]) if package == "stable_baselines3" else None
    if algorithm is None:
        raise UsageError(
            f"a model of Stable-Baselines3 must be one of PPO, A2C, DQN, SAC, TD3 or DDPG, got a policy of {module!r} in "
            f"{name}; wrap it in a function from observation to action"
        )
    return getattr(importlib.import_module("stable_baselines3"), algorithm)
