"""How the values of a space lie in arrays: what has a fixed size in shared memory, the rest beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

Array = np.ndarray[Any, np.dtype[Any]]


class Target(Protocol):
    """Takes the value of row `i`: an array, or what looks like one."""

    def __setitem__(self, i: int, value: Any, /) -> None: ...


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

    def get(self, value: Any) -> Any:
        """Return this part of a value of the whole space."""
        for key in self.path:
            value = value[key]
        return value


def leaves(space: spaces.Space[Any], path: tuple[Any, ...] = ()) -> Iterator[Leaf]:
    """Yield the leaves of a space in the order of its keys."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaves(part, (*path, index))
    else:
        yield Leaf(path, space, isinstance(space, FIXED), tuple(space.shape or ()), _canonical(space.dtype))


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

    def shapes(self, count: int) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shapes of the arrays that hold `count` values, one a fixed leaf."""
        return [((count, *leaf.shape), leaf.dtype) for leaf in self.fixed]

    def target(
        self,
        arrays: Sequence[Array],
        put_loose: Callable[[int, int, Any], None],
        refuse: Callable[[Any], None] = lambda _: None,
    ) -> Target:
        """Return what `target[i] = value` writes a value into row `i` of the arrays with.

        Loose leaves go to `put_loose(leaf number, i, value)`; a value of which a part is `None`, which numpy would take
        for NaN, goes to `refuse(value)`. The most common space, one fixed leaf, gets the array
        itself: any function around it would cost 1% of a CartPole step and more.
        """
        if len(self.leaves) == 1 and self.fixed and not self.fixed[0].path:
            return arrays[0]
        return _Composite(
            [(array, _getter(leaf)) for array, leaf in zip(arrays, self.fixed, strict=True)],
            [(number, _getter(leaf)) for number, leaf in enumerate(self.loose)],
            put_loose,
            refuse,
        )

    def batch(self, arrays: Sequence[Array], objects: Sequence[Sequence[Any]]) -> Any:
        """Put arrays (and, for loose leaves, lists of values) together to a batch of the space, without copies."""
        if len(self.leaves) == 1 and self.fixed and not self.fixed[0].path:
            return arrays[0]
        fixed, loose = iter(arrays), iter(objects)
        return self._assemble(self.space, fixed, loose)

    def _assemble(self, space: spaces.Space[Any], fixed: Iterator[Array], loose: Iterator[Sequence[Any]]) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._assemble(part, fixed, loose) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._assemble(part, fixed, loose) for part in space.spaces)
        return next(fixed) if isinstance(space, FIXED) else tuple(next(loose))

    def row(self, arrays: Sequence[Array], objects: Sequence[Sequence[Any]], i: int) -> Any:
        """Return row `i` as one value of the space, copied."""
        rows = [array[i].copy() for array in arrays]
        return self.batch(rows, [[values[i]] for values in objects]) if not self.loose else self._row(rows, objects, i)

    def _row(self, rows: list[Any], objects: Sequence[Sequence[Any]], i: int) -> Any:
        def pick(space: spaces.Space[Any], fixed: Iterator[Any], loose: Iterator[Any]) -> Any:
            if isinstance(space, spaces.Dict):
                return {key: pick(part, fixed, loose) for key, part in space.spaces.items()}
            if isinstance(space, spaces.Tuple):
                return tuple(pick(part, fixed, loose) for part in space.spaces)
            return next(fixed) if isinstance(space, FIXED) else next(loose)

        return pick(self.space, iter(rows), iter([values[i] for values in objects]))


class _Composite:
    """Takes values apart into several arrays, and parts without a fixed size."""

    def __init__(
        self,
        fixed: list[tuple[Array, Callable[[Any], Any]]],
        loose: list[tuple[int, Callable[[Any], Any]]],
        put_loose: Callable[[int, int, Any], None],
        refuse: Callable[[Any], None],
    ) -> None:
        self._fixed, self._loose, self._put_loose, self._refuse = fixed, loose, put_loose, refuse

    def __setitem__(self, i: int, value: Any) -> None:
        for array, get in self._fixed:
            part = get(value)
            if part is None:
                self._refuse(value)
            array[i] = part
        for number, get in self._loose:
            self._put_loose(number, i, get(value))


def _getter(leaf: Leaf) -> Callable[[Any], Any]:
    return itemgetter(leaf.path[0]) if len(leaf.path) == 1 else leaf.get


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
