"""The state of a model of Sorrel's, between processes: its arrays and tensors by number, and all else as a pickle."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from stretto.errors import UsageError
from stretto.spaces import Array

__calls_user_code__ = True

_LOCKS: Mapping[type, Callable[[], Any]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
}

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Packed:
    """Models as one piece: `texts` has the models, and then the memory of each; `arrays` are those that the texts name."""

    texts: tuple[bytes, ...]
    arrays: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What training has changed: arrays by number, arrays that are new, and texts that are not what they were."""

    arrays: dict[int, Array]
    new: tuple[Array, ...]
    texts: dict[int, bytes]


class Models:
    """Models that are trained together, as the process has them; its arrays and tensors have numbers.

    Tensors keep their identity in whatever is taken over: what else refers to weights goes on to see them. Gradients are
    not kept: every training is to begin with none.
    """

    def __init__(self, models: Sequence[Any], leaves: Sequence[Any] = ()) -> None:
        self.models = list(models)
        self._leaves = list(leaves)
        self._numbers = {id(leaf): number for number, leaf in enumerate(self._leaves)}

    # ---- out ----

    def pack(self) -> Packed:
        """Return all that the models are; the arrays are views.

        Raises:
            UsageError: if something in it belongs to this process alone.
        """
        texts = self._texts()
        return Packed(texts, tuple(map(array_of, self._leaves)))

    def leaves(self) -> set[int]:
        """Return what identifies the arrays and tensors in this process."""
        return set(self._numbers)

    def _texts(self) -> tuple[bytes, ...]:
        memories = [getattr(model, "memory", None) for model in self.models]
        apart = {id(memory): number for number, memory in enumerate(memories) if memory is not None}
        return (self._text(self.models, apart), *(self._text(memory, {}) for memory in memories))

    def _text(self, value: Any, apart: Mapping[int, int]) -> bytes:
        file = io.BytesIO()
        try:
            _Writer(file, self._number, apart).dump(value)
        except Exception as error:
            raise UsageError(
                f"a model must be picklable to be trained in another process, and it is not: {error}"
            ) from error
        return file.getvalue()

    def _number(self, leaf: Any) -> int:
        number = self._numbers.setdefault(id(leaf), len(self._leaves))
        if number == len(self._leaves):
            self._leaves.append(leaf)  # which keeps its identity from being taken by another
        return number

    # ---- in ----

    @classmethod
    def unpack(cls, packed: Packed) -> Models:
        """Return models like those that were packed, with arrays of their own."""
        made: dict[int, Any] = {}

        def leaf(number: int, kind: str, needs_gradient: bool) -> Any:
            if number not in made:
                made[number] = _leaf_of(packed.arrays[number].copy(), kind, needs_gradient)
            return made[number]

        memories = [_Reader(io.BytesIO(text), leaf, ()).load() for text in packed.texts[1:]]
        models = _Reader(io.BytesIO(packed.texts[0]), leaf, memories).load()
        return cls(models, [made[number] for number in range(len(packed.arrays))])

    def watched(self) -> Watched:
        """Return what finds out later what has changed since now."""
        return Watched(self, self.pack())

    def take(self, changes: Changes, began: Packed | None) -> None:
        """Take over what training has changed elsewhere.

        Training began with what `began` says, if something may have changed here since: that stays as it is.
        """
        kept = [] if began is None else [dict(vars(model)) for model in self.models]
        for number, array in changes.arrays.items():
            mine = array_of(self._leaves[number])
            if began is None or is_same_memory(mine, began.arrays[number]):
                mine[...] = array
        known, new = len(self._leaves), {}

        def leaf(number: int, kind: str, needs_gradient: bool) -> Any:
            if number < known:
                return self._leaves[number]
            if number not in new:
                new[number] = _leaf_of(changes.new[number - known].copy(), kind, needs_gradient)
            return new[number]

        for number, model in enumerate(self.models):
            if number + 1 in changes.texts:
                _become(model.memory, _Reader(io.BytesIO(changes.texts[number + 1]), leaf, ()).load())
        if 0 in changes.texts:
            memories = [getattr(model, "memory", None) for model in self.models]
            found = _Reader(io.BytesIO(changes.texts[0]), leaf, memories).load()
            for model, other in zip(self.models, found, strict=True):
                _become(model, other)
            if began is not None:
                self._keep_plain(kept, began)

    def _keep_plain(self, kept: Sequence[Mapping[str, Any]], began: Packed) -> None:
        """Let numbers and texts that were changed here while a training was under way be what they are here."""
        for model, here, before in zip(self.models, kept, Models.unpack(began).models, strict=True):
            for name, value in here.items():
                if isinstance(value, _PLAIN) and value != getattr(before, name, value):
                    vars(model)[name] = value


class Watched:
    """Models, and what they were when somebody began to watch them."""

    def __init__(self, models: Models, before: Packed) -> None:
        self._models, self._texts = models, before.texts
        self._arrays = [array.copy() for array in before.arrays]

    def changes(self) -> Changes:
        """Return what is not as it was."""
        now = self._models.pack()
        known = len(self._arrays)
        changed = {
            number: array
            for number, (array, before) in enumerate(zip(now.arrays, self._arrays, strict=False))
            if not is_same_memory(array, before)
        }
        texts = {number: text for number, text in enumerate(now.texts) if text != self._texts[number]}
        return Changes(changed, now.arrays[known:], texts)


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a value; arrays and tensors are numbers, and so is what is kept `apart`."""

    def __init__(self, file: io.BytesIO, number: Callable[[Any], int], apart: Mapping[int, int]) -> None:
        super().__init__(file, protocol=5)
        import torch
        from sorrel.entities import Entity
        from sorrel.environment import Environment
        from sorrel.worlds.base_world import World

        self._number, self._apart, self._torch = number, apart, torch
        self._of_the_game: tuple[type, ...] = Entity, Environment, World

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind is np.ndarray:
            can_be_written = not value.dtype.hasobject and value.flags.writeable
            return ("leaf", self._number(value), "array", False) if can_be_written else None
        if kind in {self._torch.Tensor, self._torch.nn.Parameter}:
            return self._tensor(value)
        if kind in _LOCKS:
            return "lock", kind is not type(threading.Lock())
        if value is self._torch.default_generator:
            return ("generator",)
        if id(value) in self._apart:
            return "apart", self._apart[id(value)]
        if isinstance(value, self._of_the_game):
            raise TypeError(f"it refers to the game itself, {kind.__qualname__}")
        return None

    def _tensor(self, value: Any) -> Any:
        if value.grad_fn is not None or value.device.type != "cpu":
            raise TypeError(f"it has a tensor on {value.device}, or one in the middle of a computation")
        if value.layout is not self._torch.strided or value.dtype is self._torch.bfloat16:
            return None
        return "leaf", self._number(value), type(value).__name__, value.requires_grad


class _Reader(pickle.Unpickler):
    """Reads what a `_Writer` has written; `leaf` makes or finds arrays and tensors."""

    def __init__(self, file: io.BytesIO, leaf: Callable[[int, str, bool], Any], apart: Sequence[Any]) -> None:
        super().__init__(file)
        self._leaf, self._apart = leaf, apart

    def persistent_load(self, named: Any) -> Any:
        match named:
            case ("leaf", number, kind, needs_gradient):
                return self._leaf(number, kind, needs_gradient)
            case ("apart", number):
                return self._apart[number]
            case ("lock", is_reentrant):
                return threading.RLock() if is_reentrant else threading.Lock()
            case _:
                import torch

                return torch.default_generator


def array_of(leaf: Any) -> Array:
    """Return the memory of an array or a tensor."""
    found: Array = leaf if type(leaf) is np.ndarray else leaf.detach().numpy()
    return found


def is_same_memory(one: Array, other: Array) -> bool:
    """Whether two arrays are equal to the last bit."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.flags.c_contiguous and other.flags.c_contiguous and one.size:
        return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))
    return one.tobytes() == other.tobytes()


def _leaf_of(array: Array, kind: str, needs_gradient: bool) -> Any:
    if kind == "array":
        return array
    import torch

    tensor = torch.from_numpy(array)
    return torch.nn.Parameter(tensor, needs_gradient) if kind == "Parameter" else tensor.requires_grad_(needs_gradient)


def _become(mine: Any, other: Any) -> None:
    """Let an object have what another one of its kind has, and stay the object that it is."""
    vars(mine).clear()
    vars(mine).update(vars(other))
