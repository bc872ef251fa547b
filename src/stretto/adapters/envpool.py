"""Worlds of EnvPool: a pool as a `gymnasium.vector.VectorEnv`, and one world of a pool as a `gymnasium.Env`."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

__calls_user_code__ = True

_LARGEST_SEED = 2**31 - 1
_EVERY_STEP = frozenset({"env_id", "players", "elapsed_step"})
"""Infos that say nothing of the world, and that EnvPool gives in every step."""


def make(task: str, num_envs: int | None = None, **kwargs: Any) -> Any:
    """Return a pool of `num_envs` worlds, or, if that is left out, a single world. EnvPool is given the other arguments."""
    return Single(task, **kwargs) if num_envs is None else Pool(task, num_envs, **kwargs)


class Pool(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A pool of worlds. EnvPool takes seeds only where a pool is made: a reset with a seed makes it anew."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  as Gymnasium spells it

    def __init__(self, task: str, num_envs: int, **kwargs: Any) -> None:
        import envpool

        self.num_envs = num_envs
        self._make = partial(envpool.make, task, env_type="gymnasium", num_envs=num_envs, **kwargs)
        self._start(int(np.random.SeedSequence().generate_state(1)[0]))
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def _start(self, seed: int) -> None:
        self._pool = self._make(seed=seed % _LARGEST_SEED)
        self._step = self._pool.step

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._pool.close()
            self._start(int(seed))
        observations, infos = self._pool.reset()
        return observations, self._told(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self._step(actions)
        return observations, rewards, terminated, truncated, self._told(infos)

    def _told(self, infos: dict[str, Any]) -> dict[str, Any]:
        if infos.keys() <= _EVERY_STEP:  # nearly always
            return {}
        everywhere = np.ones(self.num_envs, bool)
        told = {name: value for name, value in infos.items() if name not in _EVERY_STEP}
        return {**told, **{f"_{name}": everywhere for name in told}}

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()


class Single(gymnasium.Env[Any, Any]):
    """A pool of one world, as that world."""

    def __init__(self, task: str, **kwargs: Any) -> None:
        self._pool = Pool(task, 1, **{"num_threads": 1, **kwargs})
        self.observation_space = self._pool.single_observation_space
        self.action_space = self._pool.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self._pool.reset(seed=seed)
        return observations[0], _first(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self._pool.step(np.asarray([action]))
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _first(infos)

    def close(self) -> None:
        self._pool.close()


def _first(infos: dict[str, Any]) -> dict[str, Any]:
    return {name: value[0] for name, value in infos.items() if not name.startswith("_")}
