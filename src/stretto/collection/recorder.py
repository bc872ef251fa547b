"""Recorder: what every slot sees, does and is given, a row a step, taken out when a piece of it is whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.core import AgentKind, BlockAnswer
from stretto.policies.states import map_state
from stretto.spaces import FIXED, Array, map_space

if TYPE_CHECKING:
    from stretto.collection.worlds import KindRows

_FIRST_ROWS = 64

_GIVEN = ("rewards", "terminated", "truncated")


class KindRecorder:
    """The rows of agents of one kind: arrays with leading axes rows, slots and agents, which grow as rows are needed.

    A row is what the agents saw, what they did if they `acted`, and what that gave. The last observation of an episode
    has a row of its own, in which nobody acts: so what follows a row is always the next one.
    """

    def __init__(self, kind: AgentKind, slots: int) -> None:
        self.kind, self._slots, self._rows = kind, slots, _FIRST_ROWS
        shape = slots, len(kind.agents)
        self._columns: dict[str, Any] = {name: self._column(np.zeros(shape, np.bool_)) for name in ("acted", *_GIVEN)}
        self._columns["rewards"] = self._column(np.zeros(shape))

    def _column(self, like: Any) -> Array:
        like = np.asarray(like)
        return np.zeros((self._rows, self._slots, *like.shape[1:]), like.dtype)

    def act(
        self, rows: Array, slots: Array, observations: Any, acted: Array, actions: Any, says: Mapping[str, Any]
    ) -> None:
        """Write what agents see and do; batches have a row for each of `slots`."""
        self._put("observations", rows, slots, map_space(_as_array, self.kind.observation_space, observations))
        self._put("actions", rows, slots, map_space(_as_array, self.kind.action_space, actions))
        self._columns["acted"][rows, slots] = acted
        if says:
            self._put("says", rows, slots, says)

    def act_some(
        self, rows: Array, slots: Array, columns: Sequence[int], where: Array, observations: Any, answer: BlockAnswer
    ) -> None:
        """Write what some agents see and do, in rows that `end` has begun; batches are of the agents in `columns`."""
        s, j = np.nonzero(where)
        places, source = (rows[s], slots[s], np.asarray(columns, np.intp)[j]), (s, j)
        self._put_some("observations", places, source, map_space(_as_array, self.kind.observation_space, observations))
        self._put_some("actions", places, source, map_space(_as_array, self.kind.action_space, answer.actions))
        self._columns["acted"][places] = True
        if answer.says:
            self._put_some("says", places, source, dict(answer.says))

    def _put_some(self, name: str, places: tuple[Array, ...], source: tuple[Array, ...], values: Any) -> None:
        columns = self._column_of(name, values)
        map_state(lambda column, part: column.__setitem__(places, part[source]), columns, values)

    def _column_of(self, name: str, values: Any) -> Any:
        """Return a column, for all agents of the kind, that has room for such values."""
        if name not in self._columns:
            size = self._rows, self._slots, len(self.kind.agents)
            self._columns[name] = map_state(lambda part: np.zeros((*size, *part.shape[2:]), part.dtype), values)
        return self._columns[name]

    def expect(self, actions: Any) -> None:
        """Have room for such actions, even if nobody ever acts."""
        self._column_of("actions", map_space(_as_array, self.kind.action_space, actions))

    def take_back(self, rows: Array, slots: Array, where: Array, observations: Any) -> None:
        """Let some agents have done nothing in these rows, and have seen this."""
        s, j = np.nonzero(where)
        places = rows[s], slots[s], j
        seen = map_space(_as_array, self.kind.observation_space, observations)
        self._put_some("observations", places, (s, j), seen)
        for name, columns in self._columns.items():
            if name != "observations":
                map_state(lambda column: column.__setitem__(places, _nothing(column)), columns)

    def give(self, rows: Array, slots: Array, given: KindRows) -> None:
        """Write what came of it."""
        for name in _GIVEN:
            self._columns[name][rows, slots] = getattr(given, name)[slots]

    def end(self, rows: Array, slots: Array, observations: Any) -> None:
        """Write the last observation of an episode; nobody acts on it."""
        self._put("observations", rows, slots, map_space(_as_array, self.kind.observation_space, observations))
        for name, columns in self._columns.items():
            if name != "observations":
                map_state(lambda column: column.__setitem__((rows, slots), _nothing(column)), columns)

    def _put(self, name: str, rows: Array, slots: Array, values: Any) -> None:
        columns = self._columns.get(name)
        if columns is None:
            columns = self._columns[name] = map_state(self._column, values)
        if isinstance(columns, np.ndarray):
            columns[rows, slots] = values
        else:
            map_state(lambda column, part: column.__setitem__((rows, slots), part), columns, values)

    def take(self, count: int, slots: Any = slice(None)) -> dict[str, Any]:
        """Return copies of the first `count` rows by name, of one slot or of all."""
        return {
            name: map_state(lambda column: column[:count, slots].copy(), columns)
            for name, columns in self._columns.items()
        }

    def grow(self) -> None:
        """Make room for twice as many rows."""
        self._rows *= 2
        self._columns = map_state(lambda column: np.concatenate([column, np.zeros_like(column)]), self._columns)


class Recorder:
    """The rows of all kinds of agents; `rows[slot]` is the slot's next one."""

    def __init__(self, kinds: Sequence[AgentKind], slots: int) -> None:
        self.kinds = [KindRecorder(kind, slots) for kind in kinds]
        self.rows = np.zeros(slots, np.intp)
        self._room = _FIRST_ROWS

    def advance(self, slots: Array) -> None:
        """Go on to the next row of these slots."""
        self.rows[slots] += 1
        if self.rows.max() >= self._room:
            self._room *= 2
            for kind in self.kinds:
                kind.grow()


def _nothing(column: Array) -> Any:
    return None if column.dtype.hasobject else 0


def _as_array(leaf: Any, part: Any) -> Array:
    """Return a batch of a leaf as an array; values without a fixed size are objects."""
    if isinstance(leaf, FIXED):
        return np.asarray(part)
    objects = np.empty((len(part), len(part[0])), object)
    for i, row in enumerate(part):
        for j, value in enumerate(row):
            objects[i, j] = value
    return objects
