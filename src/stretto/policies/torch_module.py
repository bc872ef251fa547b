"""TorchModule: a module of torch, or of TorchRL, as a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from stretto.core import WorldSpec
from stretto.policies.network_policy import NetworkAgent, NetworkPolicy
from stretto.policies.torch_settings import check_device
from stretto.safetensors import read_safetensors
from stretto.spaces import Array, map_space

__calls_user_code__ = True


class TorchModule(NetworkPolicy):
    """Acts by a module: it is given a batch of observations as tensors, floats as 32 bits.

    A Dict of observations is a dict of tensors. Of several outputs the first one counts. A module of TorchRL (a
    `TensorDictModule`) is given a TensorDict with its `in_keys`, and its `action` counts, with no exploration.

    Args:
        world: the world that agents are in.
        make: returns the module.
        device: where it computes.
    """

    def __init__(self, world: WorldSpec, make: Callable[[], Any], *, device: str = "cpu") -> None:
        super().__init__(world)
        check_device(device)
        self._device = device
        self._use(make())

    def _use(self, module: Any) -> None:
        self._module = module.to(self._device)
        if hasattr(module, "eval"):
            self._module.eval()
        self._by_keys = hasattr(module, "in_keys") and hasattr(module, "out_keys")

    def load(self, path: str) -> None:
        """Take the weights of a safetensors file, under the names of the module's `state_dict`."""
        import torch

        weights = {name: torch.from_numpy(np.array(values)) for name, values in read_safetensors(path).items()}
        self._module.load_state_dict(weights)

    def compute(self, observations: Any, agents: Sequence[NetworkAgent]) -> Array:
        import torch

        space = self.world.observation_spaces[agents[0].agent]
        seen = map_space(lambda _, part: self._tensor(part), space, observations)
        with torch.no_grad(), self._without_exploration():
            outputs = self._by_tensordict(seen, len(agents)) if self._by_keys else self._module(seen)
        while isinstance(outputs, (tuple, list)):
            outputs = outputs[0]
        found: Array = outputs.detach().cpu().numpy()
        return found

    def _tensor(self, part: Array) -> Any:
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(part))
        return (tensor.float() if tensor.is_floating_point() else tensor).to(self._device)

    def _without_exploration(self) -> AbstractContextManager[Any]:
        if not self._by_keys:
            return nullcontext()
        from torchrl.envs.utils import ExplorationType, set_exploration_type

        made: AbstractContextManager[Any] = set_exploration_type(ExplorationType.DETERMINISTIC)
        return made

    def _by_tensordict(self, seen: Any, rows: int) -> Any:
        from tensordict import TensorDict

        keys = self._module.in_keys
        values = (
            {key: seen.get(key, seen.get(_last(key))) for key in keys} if isinstance(seen, dict) else {keys[0]: seen}
        )
        return self._module(TensorDict(values, batch_size=[rows], device=self._device))["action"]


class TorchFile(TorchModule):
    """Acts by a module that was saved whole: by `torch.export.save` (.pt2), or as TorchScript by `torch.jit.save` (.pt)."""

    def __init__(self, world: WorldSpec, *, device: str = "cpu") -> None:
        NetworkPolicy.__init__(self, world)
        check_device(device)
        self._device = device

    def load(self, path: str) -> None:
        """Take the module of a file."""
        import torch

        if Path(path).suffix == ".pt2":
            module = torch.export.load(path).module()
            self._module, self._by_keys = module, False  # it cannot be told to be in use: it was exported so
        else:
            self._use(torch.jit.load(path, map_location=self._device))  # type: ignore[no-untyped-call]


def _last(key: Any) -> Any:
    return key[-1] if isinstance(key, tuple) else key
