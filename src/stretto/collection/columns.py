"""Columns: the rows of one trial while it is played: observations in arrays, all else in lists until it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stretto.collection.experience import Experience
from stretto.core import AgentKind
from stretto.policies.states import map_state
from stretto.spaces import Array, SpaceLayout

_FIRST_ROWS = 256


class Columns:
    """The rows of a trial of one agent. `actions`, `rewards` and `says` are appended to by whoever plays it.

    The last observation of an episode has a row of its own, in which nobody acts. `exact[row]` takes observations that are
    arrays of the space's own type and shape, in half of the time that numpy takes; it is empty where they never are.
    """

    def __init__(self, layout: SpaceLayout, actions: SpaceLayout, refuse: Callable[[Any], None]) -> None:
        """Make room; `refuse(observation)` raises if one has another shape than it should."""
        self._layout, self._action_layout, self._refuse = layout, actions, refuse
        self._room = _FIRST_ROWS
        self._arrays: list[Array] = [np.zeros(shape, dtype) for shape, dtype in layout.shapes(self._room)]
        self.exact: Sequence[Any] = ()
        self._aim()
        self.clear()

    def clear(self) -> None:
        """Begin another trial."""
        self._objects: list[list[Any]] = [[] for _ in self._layout.loose]
        self.actions: list[Any] = []
        self.rewards: list[Any] = []
        self.says: list[Any] = []
        self.ends: list[int] = []
        self._flags: list[tuple[bool, bool]] = []

    def _aim(self) -> None:
        only = self._layout.only is not None and self._arrays[0].ndim == 2
        self.exact = [memoryview(row) for row in self._arrays[0]] if only else ()
        self._target = self._layout.target(
            self._arrays, lambda leaf, _, value: self._objects[leaf].append(value), self._refuse
        )

    def put(self, row: int, observation: Any) -> Any:
        """Write an observation as numpy converts it; return a copy of what was written."""
        if row == self._room:
            self._room *= 2
            self._arrays = [np.concatenate([part, np.zeros_like(part)]) for part in self._arrays]
            self._aim()
        if self.exact and type(observation) is np.ndarray:
            try:
                self.exact[row][:] = observation
                return observation.copy()
            except (TypeError, ValueError):
                self.exact = ()
        if self._layout.only is None:
            self._target[row] = observation
            return self._layout.row(self._arrays, self._objects, row)
        self._refuse(observation)
        self._target[row] = observation
        return self._arrays[0][row].copy()

    def end(self, row: int, terminated: Any, truncated: Any) -> None:
        """Let the observation in this row be the last one of an episode; only its last step can have a flag."""
        self.ends.append(row)
        self._flags.append((bool(terminated), bool(truncated)))
        self.rewards.append(0.0)

    def experience(self, kind: AgentKind) -> Experience:
        """Return the rows as arrays, with an axis of one agent."""
        count = self.ends[-1] + 1
        acted, terminated, truncated = np.zeros((3, count, 1), np.bool_)
        acted.fill(True)
        for end, (by_itself, cut) in zip(self.ends, self._flags, strict=True):
            acted[end] = False
            if by_itself:
                terminated[end - 1] = True
            if cut:
                truncated[end - 1] = True
        places: Any = slice(0, count - 1) if len(self.ends) == 1 else np.flatnonzero(acted[:, 0])

        def column(values: Any, dtype: Any, shape: tuple[int, ...] = ()) -> Array:
            found = np.zeros((count, 1, *shape), dtype)
            found[places, 0] = values
            return found

        says = {}
        if self.says:
            says = map_state(lambda *parts: column(parts, np.asarray(parts[0]).dtype, np.shape(parts[0])), *self.says)
        return Experience(
            kind.agents,
            self._seen(count),
            self._done(column, places, count),
            acted,
            np.array(self.rewards, np.float64)[:, None],
            terminated,
            truncated,
            says,
        )

    def _seen(self, count: int) -> Any:
        if self._layout.only is not None:
            return self._arrays[0][:count, None].copy()
        arrays = [part[:count, None].copy() for part in self._arrays]
        return self._layout.assembled(arrays, [_objects(one, np.arange(count), count) for one in self._objects])

    def _done(self, column: Callable[..., Array], places: Any, count: int) -> Any:
        layout, taken = self._action_layout, self.actions
        if layout.only is not None:
            return column(taken, layout.only.dtype, layout.only.shape)
        fixed = [column([leaf.get(one) for one in taken], leaf.dtype, leaf.shape) for leaf in layout.fixed]
        where = np.arange(count)[places]
        loose = [_objects([leaf.get(one) for one in taken], where, count) for leaf in layout.loose]
        return layout.assembled(fixed, loose)


def _objects(values: list[Any], places: Array, count: int) -> Array:
    found = np.empty((count, 1), object)
    for place, value in zip(places.tolist(), values, strict=True):
        found[place, 0] = value
    return found
