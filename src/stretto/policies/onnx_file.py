"""OnnxFile: a network in an ONNX file as a policy; needs the package `onnxruntime`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.core import WorldSpec
from stretto.errors import UsageError
from stretto.policies.network_policy import NetworkAgent, NetworkPolicy
from stretto.spaces import Array, leaves

STATE, NEXT_STATE, ACTION = "state", "next_state", "action"
"""What our own files call the memory of agents before and after a step, and their actions."""

_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}


class OnnxFile(NetworkPolicy):
    """Acts by a network in an ONNX file, ours or somebody else's.

    Its inputs are the parts of an observation: `observation.` and the keys of a Dict, or any name if there is one part.
    An input `state` is what the output `next_state` was in the step before, and zeros at first. The action is the output
    `action`, or else the first one.

    Args:
        world: the world that agents are in.
        threads: how many threads compute a batch; another number may change last bits.
    """

    def __init__(self, world: WorldSpec, *, threads: int = 1) -> None:
        super().__init__(world)
        if importlib.util.find_spec("onnxruntime") is None:
            raise UsageError("an ONNX file needs onnxruntime, which is not installed; run pip install onnxruntime")
        self._threads = threads

    def load(self, path: str) -> None:
        """Take the network of a file."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = self._threads
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = self._session.get_inputs()
        self._state = next((one for one in inputs if one.name == STATE), None)
        self._inputs = [one for one in inputs if one is not self._state]
        names = [one.name for one in self._session.get_outputs()]
        self._outputs = [ACTION if ACTION in names else names[0], *([NEXT_STATE] if self._state is not None else [])]
        # Some files are for one row alone: their batch has a fixed size.
        self._rows = inputs[0].shape[0] if isinstance(inputs[0].shape[0], int) else None
        if self._rows not in {None, 1}:
            raise UsageError(
                f"the rows of an ONNX file must be free, or one, got {self._rows} in {path}; export it again"
            )
        self._parts = self._named_parts(self.world.agents[0])

    def _named_parts(self, agent: str) -> dict[str, Any]:
        """Return the part of an observation that each input is."""
        parts = {
            ".".join(map(str, ("observation", *leaf.path))): leaf
            for leaf in leaves(self.world.observation_spaces[agent])
        }
        if len(parts) == len(self._inputs) == 1:
            return {self._inputs[0].name: next(iter(parts.values()))}
        if missing := [one.name for one in self._inputs if one.name not in parts]:
            raise UsageError(
                f"the inputs of an ONNX file must be parts of the observation, {', '.join(parts)}, got {missing[0]!r}"
            )
        return {one.name: parts[one.name] for one in self._inputs}

    def compute(self, observations: Any, agents: Sequence[NetworkAgent]) -> Array:
        given = {one.name: self._cast(one, self._parts[one.name].get(observations)) for one in self._inputs}
        if self._state is not None:
            width = int(self._state.shape[-1])
            states = [np.zeros(width, np.float32) if one.state is None else one.state for one in agents]
            given[STATE] = np.stack(states)
        count = len(agents)
        size = count if self._rows is None else self._rows
        pieces = [
            self._session.run(self._outputs, {name: array[i : i + size] for name, array in given.items()})
            for i in range(0, count, size)
        ]
        outputs = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
        if self._state is not None:
            for agent, state in zip(agents, outputs[1], strict=True):
                agent.state = state
        return np.asarray(outputs[0])

    @staticmethod
    def _cast(wanted: Any, array: Array) -> Array:
        """Return an array of the type and, where that is fixed, the shape that an input has."""
        dtype = _TYPES.get(wanted.type)
        found = array if dtype is None else array.astype(dtype, copy=False)
        fixed = [one for one in wanted.shape[1:] if isinstance(one, int)]
        if len(fixed) == len(wanted.shape) - 1 and found.shape[1:] != tuple(fixed):
            return found.reshape(len(found), *fixed)
        return found
