"""Gymnasium as CleanRL's scripts know it, with our vector environments: `import stretto.interop.cleanrl as gym`.

These scripts were written for Gymnasium 0.29. Its vector environments begin the next episode in the step that ends one, and
have an info for each environment. `SyncVectorEnv` and `AsyncVectorEnv` are ours in that form; all other names are
Gymnasium's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper

from stretto.envs.infos import info_of
from stretto.envs.make import make_vec


class SyncVectorEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """Our vector environment of these functions, with infos as Gymnasium 0.29 has them.

    `options` are those of `stretto.make_vec`. Where an episode ended, `final_info` and `final_observation` have an entry for
    each environment, which is `None` if its episode goes on.

    Attributes:
        env: the vector environment itself, for all that Gymnasium does not know.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], **options: Any) -> None:
        options.setdefault("autoreset_mode", AutoresetMode.SAME_STEP)
        made: Any = make_vec(env_fns, **options)
        super().__init__(made)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return observations, rewards, terminations, truncations, _as_before(infos) if "final_obs" in infos else infos


AsyncVectorEnv = SyncVectorEnv


def _as_before(infos: dict[str, Any]) -> dict[str, Any]:
    """Return infos in which the last ones of episodes are by environment."""
    ended = infos["_final_obs"]
    observations, last = np.full(len(ended), None), np.full(len(ended), None)
    for i in np.flatnonzero(ended).tolist():
        observations[i], last[i] = infos["final_obs"][i], info_of(infos["final_info"], i)
    others = {name: value for name, value in infos.items() if name.removeprefix("_") not in ("final_obs", "final_info")}
    return {
        **others,
        "final_observation": observations, "_final_observation": ended.copy(),
        "final_info": last, "_final_info": ended.copy(),
    }  # fmt: skip


class _Vector(ModuleType):
    """`gymnasium.vector`, but for two classes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(gymnasium.vector, name)


vector = _Vector("stretto.interop.cleanrl.vector", gymnasium.vector.__doc__)
vars(vector).update(SyncVectorEnv=SyncVectorEnv, AsyncVectorEnv=AsyncVectorEnv)


def __getattr__(name: str) -> Any:
    return getattr(gymnasium, name)
