"""Stretto's vector environments under RLlib's environment runners; needs `ray[rllib]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.envs.make import make_vec
from stretto.errors import UsageError
from stretto.identity.names import canonical_name
from stretto.missions.resolve import makers

VECTORIZE_MODE = "vector_entry_point"
"""The `gym_env_vectorize_mode` of `config.env_runners`, by which a runner asks for all of its environments at once."""


def register(world: Any, name: str | None = None, **options: Any) -> str:
    """Register a world with RLlib, and return its name, for `config.environment(...)`.

    `world` is all that `stretto.make_vec` takes, and `options` are its other arguments. A runner's
    `num_envs_per_env_runner` says how many environments there are.
    """
    from ray.tune.registry import register_env

    if "autoreset_mode" in options:
        raise UsageError("autoreset_mode is RLlib's business, which resets in the next step; leave it out")
    chosen = name or f"stretto:{world if isinstance(world, str) else canonical_name(world)}"
    register_env(chosen, Environment(world, options))
    return chosen


@dataclass(frozen=True)
class Environment:
    """Makes the environments that a runner asks for, or a single one, at whose spaces RLlib looks."""

    world: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, config: Mapping[str, Any]) -> Any:
        """Return `num_envs` environments, or one if RLlib does not say how many."""
        count = config.get("num_envs")
        if count is not None:
            return make_vec(self.world, count, **self.options)
        (make,) = makers(self.world, 1, self.options.get("env_kwargs"))
        return make()
