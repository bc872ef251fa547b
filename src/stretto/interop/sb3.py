"""Our vector environment as a Stable-Baselines3 `VecEnv`: `PPO("MlpPolicy", sb3_vec_env("CartPole-v1", 64))`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from stretto.envs.make import make_vec
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.vector import VectorEnv
from stretto.errors import UsageError
from stretto.interop.env_attributes import has_attribute, is_wrapped, read_attribute
from stretto.spaces import Array

try:
    from stable_baselines3.common.vec_env import VecEnv, VecMonitor
except ImportError as error:
    raise ImportError("stretto.interop.sb3 needs Stable-Baselines3: pip install 'stretto[sb3]'") from error

Indices = int | Iterable[int] | None

_UNCHANGING = {int, float, bool, str, type(None), np.float64, np.float32, np.int64, np.bool_}


def sb3_vec_env(id_or_factory: Any, num_envs: int | None = None, *, monitor: bool = True, **options: Any) -> VecEnv:
    """Make environments and present them to Stable-Baselines3; `options` are those of `stretto.make_vec`.

    `monitor` counts rewards and lengths of episodes, so that learners show `ep_rew_mean`, as with `make_vec_env` of
    Stable-Baselines3. One `VecMonitor` does it for all environments, so that workers need not import torch.
    """
    options.setdefault("autoreset_mode", AutoresetMode.SAME_STEP)
    envs = make_vec(id_or_factory, num_envs, **options)
    try:
        presented = StrettoVecEnv(envs)
        return VecMonitor(presented) if monitor else presented
    except BaseException:
        envs.close()
        raise


class StrettoVecEnv(VecEnv):
    """Presents a `VectorEnv` with same-step autoreset to Stable-Baselines3, and closes it with itself.

    What it returns is what `DummyVecEnv` returns. Attributes are set where they are found, as Gymnasium does it, not on
    the outermost wrapper; what `set_attr` and `env_method` did is done again when a lost world is restored.

    Attributes:
        vector_env: the vector environment itself, for its `choice`, its `statistics()` and all that SB3 does not know.
    """

    def __init__(self, vector_env: Any) -> None:
        if isinstance(vector_env, MultiAgentVectorEnv):
            raise UsageError(
                "Stable-Baselines3 needs worlds with one agent, got worlds with agents by name; write a gymnasium.Env around "
                "such a world, in which one agent learns and the others follow policies of their own, and pass that"
            )
        if not isinstance(vector_env, VectorEnv):
            raise UsageError(
                f"Stable-Baselines3 needs worlds with one agent, in a stretto.VectorEnv, got a "
                f"{type(vector_env).__name__}; make one with stretto.make_vec"
            )
        mode = vector_env.metadata["autoreset_mode"]
        if mode is not AutoresetMode.SAME_STEP:
            raise UsageError(
                f"Stable-Baselines3 needs environments that are reset in the step that ends their episode, got "
                f"{mode}; pass autoreset_mode=AutoresetMode.SAME_STEP to make_vec"
            )
        vector_env.separate_infos()
        self.vector_env = vector_env
        self._actions: Any = None
        super().__init__(vector_env.num_envs, vector_env.single_observation_space, vector_env.single_action_space)
        self.metadata = {key: value for key, value in vector_env.metadata.items() if key != "autoreset_mode"}

    # ---- steps ----

    def reset(self) -> Any:
        options = [one or None for one in self._options]
        observations, given = self.vector_env.reset(seed=self._seeds, options=options if any(options) else None)
        by_slot: dict[Any, Any] = given
        self.reset_infos = [_own(by_slot[i][0]) if i in by_slot else {} for i in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        self._actions = None
        return observations

    def step_async(self, actions: Any) -> None:
        # SB3 computes nothing between this and `step_wait`, where the caller can step a share of the worlds itself.
        self._actions = actions

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        if self._actions is None:
            raise UsageError("step_wait() needs actions, and got none; call step_async(actions) first")
        actions, self._actions = self._actions, None
        observations, rewards, terminated, truncated, given = self.vector_env.step(actions)
        infos = self._infos(given)
        for info, cut in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = cut
        return observations, rewards.astype(np.float32), terminated | truncated, infos

    def _infos(self, given: dict[Any, Any]) -> list[dict[str, Any]]:
        """Return each environment's info; what came with the reset after an episode's end goes to `reset_infos`."""
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i, (info, *rest) in given.items():
            if "final_obs" in info and "final_info" in info:
                infos[i] = _own(info["final_info"])
                infos[i]["terminal_observation"] = info["final_obs"]
                self.reset_infos[i] = _own(rest[0]) if rest else {}
            else:
                infos[i] = _own(info)
        return infos

    def close(self) -> None:
        self.vector_env.close()

    # ---- the worlds themselves ----

    def has_attr(self, attr_name: str) -> bool:
        return all(self.vector_env.map(partial(has_attribute, name=attr_name)))

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        # `VectorEnv.get_attr` calls what it finds if that is a method, as Gymnasium's does; here it must not.
        found = self.vector_env.map(partial(read_attribute, name=attr_name))
        if not all(there for there, _ in found):
            raise AttributeError(f"the environments have no attribute {attr_name!r}")
        return [found[i][1] for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        slots = list(self._get_indices(indices))
        self.vector_env.set_attr(attr_name, [value] * len(slots), ids=slots)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        slots = list(self._get_indices(indices))
        return list(self.vector_env.call_some(slots, method_name, *method_args, **method_kwargs))

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        question = partial(is_wrapped, module=wrapper_class.__module__, name=wrapper_class.__qualname__)
        wrapped = self.vector_env.map(question)
        return [wrapped[i] for i in self._get_indices(indices)]

    def get_images(self) -> Sequence[Any]:
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"images need environments with render_mode='rgb_array', got {self.render_mode!r}; pass "
                f"env_kwargs={{'render_mode': 'rgb_array'}}",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return list(self.vector_env.render())


def _own(info: dict[str, Any]) -> dict[str, Any]:
    """Return a copy that no world can change any more; most values cannot be changed anyway."""
    return {key: value if type(value) in _UNCHANGING else copy.deepcopy(value) for key, value in info.items()}
