"""Walking over a space, and how its values lie in arrays: what has a fixed size in shared memory, the rest beside it."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

Array = np.ndarray[Any, np.dtype[Any]]


class Target(Protocol):
    """Takes the value of row `i`, or a batch for a slice of rows: an array, or what looks like one."""

    def __setitem__(self, i: Any, value: Any, /) -> None: ...


FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""The spaces whose every value takes the same bytes."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a space that is no Dict and no Tuple; `fixed` if every value of it takes the same bytes.

    `agent` is whose it is, where only one of several agents is meant.
    """

    path: tuple[Any, ...]
    space: spaces.Space[Any]
    fixed: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    agent: str | None = None

    @property
    def name(self) -> str:
        """How a person calls it; empty for the whole value."""
        return "".join(f"[{key!r}]" for key in self.path) + (f" of {self.agent!r}" if self.agent is not None else "")

    @property
    def nbytes(self) -> int:
        """How many bytes a value takes as an array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def get(self, value: Any) -> Any:
        """Return this part of a value of the whole space."""
        for key in self.path:
            value = value[key]
        return value


def parts(space: spaces.Space[Any]) -> Mapping[Any, spaces.Space[Any]] | None:
    """Return the spaces that a Dict or a Tuple is made of, by key and in order; `None` for any other space."""
    if isinstance(space, spaces.Dict):
        return space.spaces
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None


def assemble(space: spaces.Space[Any], values: Iterable[Any]) -> Any:
    """Put together what belongs to each of the `parts` of a Dict or a Tuple, in their order."""
    return dict(zip(space.spaces, values, strict=True)) if isinstance(space, spaces.Dict) else tuple(values)


def map_space(function: Callable[..., Any], space: spaces.Space[Any], *values: Any) -> Any:
    """Call `function(leaf, *values)` for every leaf of a space, in order, and put together what it returns.

    A leaf is a space that is no Dict and no Tuple. It gets its own part of each of `values`, which are taken apart as
    the space is: values of it, batches of them, anything with its keys. One that is `None` is `None` for every leaf.
    """
    # Written out, without `parts` and `assemble`: this is done for every step of worlds with such spaces.
    if isinstance(space, spaces.Dict):
        return {key: map_space(function, part, *_at(key, values)) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple([map_space(function, part, *_at(i, values)) for i, part in enumerate(space.spaces)])
    return function(space, *values)


def _at(key: Any, values: Sequence[Any]) -> Sequence[Any]:
    return [None if value is None else value[key] for value in values] if values else ()


def row_of(space: spaces.Space[Any], batch: Any, i: int) -> Any:
    """Return row `i` of a batch as one value of the space, without copies."""
    return map_space(lambda _, part: part[i], space, batch)


def any_value(space: spaces.Space[Any]) -> Any:
    """Return a value of a leaf that means nothing, always the same one where that can be."""
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start)
    if not isinstance(space, FIXED):
        return copy.deepcopy(space).sample()
    return np.zeros(space.shape or (), space.dtype)


def leaves(space: spaces.Space[Any], path: tuple[Any, ...] = ()) -> Iterator[Leaf]:
    """Yield the leaves of a space in the order of its keys."""
    inner = parts(space)
    if inner is None:
        shape, dtype = tuple(getattr(space, "shape", None) or ()), _canonical(getattr(space, "dtype", None))
        yield Leaf(path, space, isinstance(space, FIXED), shape, dtype)
        return
    for key, part in inner.items():
        yield from leaves(part, (*path, key))


def _canonical(dtype: Any) -> np.dtype[Any]:
    """Return numpy's own object for a type: one that was pickled is another, equal but not the same."""
    given = np.dtype(dtype or object)
    return np.dtype(given.str) if given.kind in "biufc" else given


class SpaceLayout:
    """The leaves of a space, and how values are taken apart into arrays and put together again."""

    def __init__(self, space: spaces.Space[Any], agent: str | None = None) -> None:
        self.space = space
        self.leaves = [dataclasses.replace(leaf, agent=agent) for leaf in leaves(space)]
        self.fixed = [leaf for leaf in self.leaves if leaf.fixed]
        self.loose = [leaf for leaf in self.leaves if not leaf.fixed]
        # The most common space is one fixed leaf, whose values are not taken apart at all.
        self.only = self.fixed[0] if len(self.leaves) == 1 and self.fixed and not self.fixed[0].path else None

    def shapes(self, count: int) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shapes of the arrays that hold `count` values, one a fixed leaf."""
        return [((count, *leaf.shape), leaf.dtype) for leaf in self.fixed]

    def target(
        self,
        arrays: Sequence[Array],
        put_loose: Callable[[int, int, Any], None],
        refuse: Callable[[Any], None] | None = None,
    ) -> Target:
        """Return what `target[i] = value` writes a value into row `i` of the arrays with.

        Loose leaves go to `put_loose(leaf number, i, value)`. A value of which a part has another shape goes to
        `refuse(value)`: numpy would repeat it until it fits, and take `None` for NaN. One fixed leaf gets the array itself,
        and whoever writes looks: any function around it would cost 1% of a CartPole step and more.
        """
        if self.only is not None:
            return arrays[0]
        return _Composite(
            [
                (array, _getter(leaf), leaf.shape, () if leaf.shape else _NUMBERS)
                for array, leaf in zip(arrays, self.fixed, strict=True)
            ],
            [(number, _getter(leaf)) for number, leaf in enumerate(self.loose)],
            put_loose,
            refuse,
        )

    def batch(self, arrays: Sequence[Array], objects: Sequence[Sequence[Any]]) -> Any:
        """Put arrays (and, for loose leaves, lists of values) together to a batch of the space, without copies."""
        if self.only is not None:
            return arrays[0]
        return self.assembled(arrays, [tuple(values) for values in objects])

    def row(self, arrays: Sequence[Array], objects: Sequence[Sequence[Any]], i: int) -> Any:
        """Return row `i` as one value of the space, copied."""
        return self.assembled([array[i].copy() for array in arrays], [values[i] for values in objects])

    def assembled(self, fixed: Iterable[Any], loose: Iterable[Any]) -> Any:
        """Put together what belongs to each of the leaves."""
        arrays, others = iter(fixed), iter(loose)
        return map_space(lambda leaf: next(arrays if isinstance(leaf, FIXED) else others), self.space)


_NUMBERS = (int, float, bool)


class _Composite:
    """Takes values apart into several arrays, and parts without a fixed size.

    Of a fixed part there are its array, what gets it, its shape, and the types whose values have that shape for certain.
    """

    def __init__(
        self,
        fixed: list[tuple[Array, Callable[[Any], Any], tuple[int, ...], tuple[type, ...]]],
        loose: list[tuple[int, Callable[[Any], Any]]],
        put_loose: Callable[[int, int, Any], None],
        refuse: Callable[[Any], None] | None,
    ) -> None:
        self._fixed, self._loose, self._put_loose, self._refuse = fixed, loose, put_loose, refuse

    def __setitem__(self, i: int, value: Any) -> None:
        refuse = self._refuse
        for array, get, shape, numbers in self._fixed:
            part = get(value)
            # A number of Python's own is common (a Discrete), and asking numpy for its shape takes 0.8 µs.
            unlike = type(part) not in numbers and getattr(part, "shape", None) != shape
            if unlike and refuse is not None and not has_shape(part, shape):
                refuse(value)
            array[i] = part
        for number, get in self._loose:
            self._put_loose(number, i, get(value))


def has_shape(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is an array of a shape, or what numpy makes one of."""
    try:
        return value is not None and np.shape(value) == shape
    except ValueError:  # lists of several lengths
        return False


def _getter(leaf: Leaf) -> Callable[[Any], Any]:
    return itemgetter(leaf.path[0]) if len(leaf.path) == 1 else leaf.get


def same_layout(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Whether the values of two spaces lie in arrays alike: spaces that differ in bounds alone, as a rule."""
    first, second = list(leaves(one)), list(leaves(other))
    return len(first) == len(second) and all(
        a.path == b.path
        and type(a.space).__qualname__ == type(b.space).__qualname__
        and (not a.fixed or (a.shape, a.dtype) == (b.shape, b.dtype))
        for a, b in zip(first, second, strict=True)
    )


def same_space(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Whether two spaces are equal.

    Spaces of foreign types are taken as equal if their types are: many have no `==` that survives a copy.
    """
    first, second = list(leaves(one)), list(leaves(other))
    return len(first) == len(second) and all(
        a.path == b.path
        and type(a.space).__qualname__ == type(b.space).__qualname__
        and (a.space is b.space or a.space == b.space or not type(a.space).__module__.startswith("gymnasium."))
        for a, b in zip(first, second, strict=True)
    )
