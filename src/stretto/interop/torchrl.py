"""A vector environment as TorchRL's `EnvBase`, for its collectors, transforms and losses; needs `torchrl`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import EnvBase

from stretto.envs.make import make_vec
from stretto.envs.vector import VectorEnv
from stretto.errors import UsageError

OBSERVATION = "observation"


class TorchrlEnv(EnvBase):  # type: ignore[misc]  # TorchRL publishes no types
    """Environments stepped by Stretto's workers, as one environment of TorchRL with a batch of `num_envs`.

    An observation is the entry `observation`; a Dict of observations has an entry for each key. Episodes that are over
    are reset where TorchRL asks for it, as its collectors do.

    Args:
        world: which world; all that `stretto.make_vec` takes.
        num_envs: how many there are.
        categorical_action_encoding: whether Discrete actions are numbers; else they are one-hot, as in TorchRL's `GymEnv`.
        device: where tensors are.
        options: other arguments of `stretto.make_vec`.

    Attributes:
        vector_env: the vector environment behind this.
    """

    def __init__(
        self,
        world: Any,
        num_envs: int = 1,
        *,
        categorical_action_encoding: bool = False,
        device: Any = "cpu",
        **options: Any,
    ) -> None:
        made = make_vec(world, num_envs, autoreset_mode=AutoresetMode.DISABLED, **options)
        if not isinstance(made, VectorEnv):
            made.close()
            raise UsageError(
                f"an environment of TorchRL has one agent here, got {world!r} with several; train them by us"
            )
        super().__init__(device=device, batch_size=[num_envs])
        self.vector_env = made
        acted: Any = made.single_action_space
        self._one_hot = isinstance(acted, spaces.Discrete) and not categorical_action_encoding
        self._first_action = int(acted.start) if isinstance(acted, spaces.Discrete) else 0
        seen = made.single_observation_space
        parts = dict(seen.spaces) if isinstance(seen, spaces.Dict) else {OBSERVATION: seen}
        self._is_dict = isinstance(seen, spaces.Dict)
        shape = torch.Size([num_envs])
        self.observation_spec = Composite(
            {name: _spec_of(part, num_envs, self.device) for name, part in parts.items()}, shape=shape
        )
        self.action_spec = (
            OneHot(int(acted.n), shape=(num_envs, int(acted.n)), device=self.device)
            if self._one_hot
            else _spec_of(acted, num_envs, self.device)
        )
        self.reward_spec = Unbounded((num_envs, 1), dtype=torch.float32, device=self.device)
        flag = Categorical(2, shape=(num_envs, 1), dtype=torch.bool, device=self.device)
        names = ("done", "terminated", "truncated")
        self.done_spec = Composite({name: flag.clone() for name in names}, shape=shape)
        self._seed: int | None = None

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or bool(mask.all()):
            seed, self._seed = self._seed, None
            observations, _ = self.vector_env.reset(seed=seed)
        else:
            rows = mask.reshape(self.batch_size[0], -1).any(-1).cpu().numpy()
            observations, _ = self.vector_env.reset(options={"reset_mask": rows})
        never = torch.zeros((*self.batch_size, 1), dtype=torch.bool)
        flags = {name: never.clone() for name in ("done", "terminated", "truncated")}
        return self._told({**self._seen(observations), **flags})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"]
        if self._one_hot:
            action = action.to(torch.uint8).argmax(-1)
        actions = action.cpu().numpy()
        observations, rewards, terminated, truncated, _ = self.vector_env.step(actions + self._first_action)
        values = {
            **self._seen(observations),
            "reward": torch.from_numpy(rewards.astype(np.float32))[:, None],
            "terminated": torch.from_numpy(terminated)[:, None],
            "truncated": torch.from_numpy(truncated)[:, None],
        }
        return self._told({**values, "done": values["terminated"] | values["truncated"]})

    def _seen(self, observations: Any) -> dict[str, Tensor]:
        parts = observations if self._is_dict else {OBSERVATION: observations}
        return {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}

    def _told(self, values: dict[str, Tensor]) -> TensorDictBase:
        return TensorDict(values, batch_size=self.batch_size, device=self.device)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """End the workers; may be called twice."""
        self.vector_env.close()
        super().close(raise_if_closed=False)


def _spec_of(space: spaces.Space[Any], count: int, device: Any) -> TensorSpec:
    """Return the spec of a batch of values of a space."""
    shape = (count, *(space.shape or ()))
    match space:
        case spaces.Discrete():
            return Categorical(int(space.n), shape=shape, dtype=torch.int64, device=device)
        case spaces.MultiDiscrete() if len(space.shape) == 1:
            return MultiCategorical(space.nvec.tolist(), shape=shape, dtype=torch.int64, device=device)
        case spaces.MultiBinary():
            return Binary(shape[-1], shape=shape, dtype=torch.int8, device=device)
        case spaces.Box():
            kind = torch.from_numpy(np.empty(0, space.dtype)).dtype
            if not (space.bounded_below.all() and space.bounded_above.all()):
                return Unbounded(shape, dtype=kind, device=device)
            low, high = (torch.from_numpy(np.broadcast_to(one, shape).copy()) for one in (space.low, space.high))
            return Bounded(low, high, shape=shape, dtype=kind, device=device)
        case _:
            raise UsageError(
                f"an environment of TorchRL has Discrete, MultiDiscrete, MultiBinary and Box spaces here, or a Dict of "
                f"these, got {space}; wrap the world"
            )
