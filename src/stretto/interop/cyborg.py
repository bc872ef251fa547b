"""CAGE challenge 2 by names that its users know: classes with `n_envs=`, and steps with four lists; needs CybORG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from stretto.adapters.cyborg import make
from stretto.envs.make import make_vec
from stretto.envs.vector import VectorEnv
from stretto.spaces import Array

__all__ = ["ParallelEnv", "ParallelEnvSharedMemory", "VectorizedCAGE2Envs", "true_state"]


def true_state(env: Any) -> Array:
    """Return what is true of each host of an environment: for `map`, which runs it beside each."""
    found: Array = env.unwrapped.true_state()
    return found


class ParallelEnv:
    """Environments of the challenge, as Blue sees them; workers step them, and the caller is one of these.

    Args:
        n_envs: how many there are.
        red_agent_type: a class of CybORG's agents, or `"b_line"`, `"meander"` or `"sleep"`.
        actions: 145, or 41 without decoys.
        max_steps: after so many steps an episode ends; `None` for never.
        seed: of the first reset.
        options: other arguments of `stretto.make_vec`.

    Attributes:
        vector_env: the vector environment behind these methods, with all that it can do.
    """

    _backend = "process"

    def __init__(
        self,
        n_envs: int = 20,
        red_agent_type: Any = "b_line",
        *,
        actions: int = 145,
        max_steps: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        env_kwargs = {"red": red_agent_type, "actions": actions, "max_steps": max_steps}
        given = {"backend": self._backend, "autoreset_mode": "same_step", **options}
        made = make_vec(make, n_envs, env_kwargs=env_kwargs, **given)
        assert isinstance(made, VectorEnv)
        self.vector_env, self.n_envs, self._seed = made, n_envs, seed
        self.num_envs = n_envs
        self.action_space, self.observation_space = made.single_action_space, made.single_observation_space

    def reset(self) -> Array:
        """Begin an episode in each environment, and return their observations."""
        seed, self._seed = self._seed, None
        observations, _ = self.vector_env.reset(seed=seed)
        return np.asarray(observations)

    def step(self, actions: Sequence[int] | Array) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Step all environments; one whose episode ends has its last observation in its info, and begins the next."""
        observations, rewards, terminated, truncated, given = self.vector_env.step(np.asarray(actions))
        infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
        if "final_obs" in given:
            for slot in np.flatnonzero(given["_final_obs"]).tolist():
                infos[slot]["terminal_observation"] = given["final_obs"][slot]
                infos[slot]["TimeLimit.truncated"] = bool(truncated[slot] and not terminated[slot])
        return np.asarray(observations), np.asarray(rewards), np.asarray(terminated | truncated), infos

    def get_true_states(self) -> Array:
        """Return the true state of every environment, computed where each is: see `Cage2.true_state`."""
        return np.stack(self.map(true_state))

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """Run a function beside each environment, and return what it returns."""
        return list(self.vector_env.map(function))

    def close(self) -> None:
        """End the workers; may be called twice."""
        self.vector_env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ParallelEnvSharedMemory(ParallelEnv):
    """The same by another name: arrays always travel through shared memory."""


class VectorizedCAGE2Envs(ParallelEnv):
    """The same in the caller's own process."""

    _backend = "serial"
