"""The arrays of all slots, by role; infos in shared memory; which numbers stand for steps."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stretto.envs.infos import BatchInfos, InfoKind, Infos, Table
from stretto.spaces import Array, SpaceLayout, Target
from stretto.workers import handing_out
from stretto.workers.arena import Arena, Field, lay_out
from stretto.workers.base import Backend
from stretto.workers.handing_out import HandingOut
from stretto.workers.private_view import PAGE, works_here

STEP_ALL = 0
"""Signal: step every world; `STEP_ALL + buffer`. For a step of some worlds see `step_some`."""

BUFFERS = 2
"""How many buffers there are where results are copied or overwritten."""

MOST_BUFFERS = 8
"""How many there are where their arrays are handed out (see `HandingOut`), and how many a signal can tell apart."""

INFO_BYTES = 256
"""The room for a slot's infos: about 28 numbers, each with a byte that says whether it is there."""


BlockRows = tuple[Any, Array, Array, Array, BatchInfos | None]
"""What a step of a block gave: observations, rewards, both flags, and infos if there are any."""

StepAlone = Callable[[Any], BlockRows]
"""Steps the only block with a batch of actions."""

StepAll = Callable[[tuple[Any, int]], tuple[Any, bool]]
"""Steps all worlds with an action for each, into a buffer; returns what else there is to tell, and whether any has ended."""


WINDOW = 32
"""How many neighbouring worlds of a worker a signal can tell apart."""


def step_some(indices: Sequence[int], buffer: int) -> int:
    """Return the signal that steps some worlds of a worker, all in one window: those from a multiple of `WINDOW` on."""
    window = indices[0] // WINDOW
    chosen = sum(1 << i - window * WINDOW for i in indices)
    return MOST_BUFFERS * (window << WINDOW | chosen) + buffer


@functools.lru_cache(maxsize=1 << 12)
def stepped_by(signal: int) -> list[int]:
    """Return the worlds that a signal of `step_some` means, in order."""
    window, chosen = divmod(signal // MOST_BUFFERS, 1 << WINDOW)
    return [window * WINDOW + i for i in range(WINDOW) if chosen >> i & 1]


def shares(places: Sequence[Hashable], most: int) -> list[list[int]]:
    """Return which rows are asked together: at most so many whose places are alike."""
    if most == 1:
        return [[row] for row in range(len(places))]
    alike: dict[Hashable, list[int]] = {}
    for row, place in enumerate(places):
        alike.setdefault(place, []).append(row)
    return [rows[i : i + most] for rows in alike.values() for i in range(0, len(rows), most)]


Shapes = list[tuple[tuple[int, ...], np.dtype[Any]]]


def buffer_shapes(observations: SpaceLayout, count: int) -> Shapes:
    """Return the arrays of a buffer for `count` slots: observations, one a leaf, then rewards and both flags."""
    flag = np.dtype(np.bool_)
    return [*observations.shapes(count), ((count,), np.dtype(np.float64)), ((count,), flag), ((count,), flag)]


def other_shapes(actions: SpaceLayout, count: int) -> Shapes:
    """Return the arrays of `count` slots that there are once: actions, one a leaf, then starts and room for infos."""
    return [*actions.shapes(count), ((count,), np.dtype(np.int64)), ((count, INFO_BYTES), np.dtype(np.uint8))]


@dataclass(slots=True)
class Buffers:
    """All arrays, by role. `starts` is what a slot's group had counted when its episode began."""

    observations: list[list[Array]]
    rewards: list[Array]
    terminated: list[Array]
    truncated: list[Array]
    actions: list[Array]
    starts: Array | None = None
    info_room: Array | None = None

    @classmethod
    def of(cls, arrays: list[Array], observations: SpaceLayout, actions: SpaceLayout) -> Buffers:
        """Take the arrays of `other_shapes`, and then those of each buffer."""
        leaves, others = len(observations.fixed), len(actions.fixed) + 2
        size = leaves + 3
        buffers = [arrays[first : first + size] for first in range(others, len(arrays), size)]
        return cls(
            observations=[buffer[:leaves] for buffer in buffers],
            rewards=[buffer[leaves] for buffer in buffers],
            terminated=[buffer[leaves + 1] for buffer in buffers],
            truncated=[buffer[leaves + 2] for buffer in buffers],
            actions=arrays[: others - 2],
            starts=arrays[others - 2],
            info_room=arrays[others - 1],
        )

    def results(self, buffer: int) -> list[Array]:
        """Return the arrays of one buffer: observations, one a leaf, then rewards and both flags."""
        flags = self.terminated[buffer], self.truncated[buffer]
        return [*self.observations[buffer], self.rewards[buffer], *flags]

    def hand_over(
        self, k: int, layout: SpaceLayout, observations: Any, rewards: Array, terminated: Array, truncated: Array
    ) -> None:
        """Make these arrays, which nobody else has, those of buffer `k`."""
        only = layout.only is not None
        self.observations[k] = [observations] if only else [leaf.get(observations) for leaf in layout.fixed]
        self.rewards[k], self.terminated[k], self.truncated[k] = rewards, terminated, truncated


def make_buffers(
    arena: Arena, backend: Backend, observations: SpaceLayout, actions: SpaceLayout, count: int, *, copies: bool
) -> tuple[list[Field], Buffers, HandingOut | None]:
    """Lay out the arrays of `count` slots; return their fields, the arrays, and what hands them out in place of `copies`."""
    # A thread that hangs cannot be ended, and might write into what users have by then.
    hands_out = copies and backend.shares_memory and (backend.killable or backend.start is None)
    others, buffer = other_shapes(actions, count), buffer_shapes(observations, count)
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in buffer[: len(observations.fixed)]]
    large = [leaf for leaf, size in enumerate(sizes) if size >= handing_out.HANDED_OUT_BYTES]
    hands_out = hands_out and bool(large) and works_here()
    fields, end = lay_out(others)
    spans = []
    for _ in range(MOST_BUFFERS if hands_out else BUFFERS):
        begin = _whole_pages(end) if hands_out else end  # a page has nothing of two buffers
        placed, end = lay_out(buffer, begin)
        fields += placed
        spans.append(range(begin, _whole_pages(end)))
    arena.allocate(spans[BUFFERS - 1].stop, end=spans[-1].stop)
    buffers = Buffers.of(arena.view(fields), observations, actions)
    firsts = range(len(others), len(fields), len(buffer))
    by_buffer = [{leaf: fields[first + leaf] for leaf in large} for first in firsts]
    hands: HandingOut | None = None
    if hands_out:
        with contextlib.suppress(OSError):  # where a program may not map as much as it likes, all is copied
            hands = HandingOut(arena, spans, by_buffer, there=BUFFERS, one_process=backend.start is None)
    return fields, buffers, hands


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


@dataclass(slots=True)
class Rows:
    """Where a group writes the results of a step: row `i` belongs to its world `i`.

    Numbers and flags are memoryviews: so few bytes are copied with less around it than numpy needs. So are the rows in
    `exact`, if each observation is a row of numbers: these take nothing but arrays of their own type and length.
    """

    target: Target
    rewards: memoryview[float]
    terminated: memoryview[int]
    truncated: memoryview[int]
    exact: list[memoryview[Any]] | None = None
    hand_over: Callable[[Any, Array, Array, Array], None] | None = None
    """Takes all rows at once as arrays that nobody else has, in place of writing them; `None` if that cannot be."""

    @classmethod
    def of(cls, target: Target, rewards: Array, terminated: Array, truncated: Array) -> Rows:
        ended, cut = [memoryview(cast(Any, array.view(np.uint8))) for array in (terminated, truncated)]
        exact = [memoryview(row) for row in target] if isinstance(target, np.ndarray) and target.ndim == 2 else None
        return cls(target, memoryview(cast(Any, rewards)), ended, cut, exact)


_SOME_ROWS, _MANY_ROWS, _FEW_COLUMNS, _SOME_COLUMNS = 256, 4_096, 8, 64


def write_rows(target: Array, source: Array) -> None:
    """Write a batch into an array in C order.

    What was computed part by part often lies by columns. numpy walks over it row by row: 8,192 rows of four numbers take
    it 18 µs, and 9 µs column by column.
    """
    shape = source.shape
    if len(shape) == 2 and shape[0] >= _MANY_ROWS and shape[1] <= _SOME_COLUMNS and source.flags.fnc:
        for k in range(shape[1]):
            target[:, k] = source[:, k]
    else:
        target[...] = source


def in_c_order(source: Array, dtype: np.dtype[Any]) -> Array:
    """Return a copy of a batch in C order.

    Of batches by columns see `write_rows`; of those in between each number is picked by its place: 1,024 rows of four
    numbers take 1.5 µs in place of 2.5.
    """
    shape = source.shape
    if shape[0] < _SOME_ROWS or len(shape) != 2 or not source.flags.fnc:
        return np.array(source, dtype, order="C")
    if shape[0] < _MANY_ROWS and shape[1] <= _FEW_COLUMNS and source.dtype == dtype:
        return source.T.take(_places(shape), mode="wrap")  # not "raise", which copies once more
    fresh = np.empty(shape, dtype)
    write_rows(fresh, source)
    return fresh


@functools.lru_cache(maxsize=4)
def _places(shape: tuple[int, int]) -> Array:
    """Return where each number of a batch in C order is found if the batch lies by columns."""
    return np.arange(math.prod(shape)).reshape(shape, order="F").copy()


def as_actions(layout: SpaceLayout, arrays: Sequence[Array]) -> Any:
    """Return actions, which lie in one array a leaf, as a group takes them: one a row, or the array itself."""
    return arrays[0] if layout.only is not None else [layout.row(arrays, (), i) for i in range(len(arrays[0]))]


_MOST_KINDS = 60
_WHOLE = 1 << 7


class InfoBuffer:
    """The room of the slots from `first` on, seen by their worker or by the caller.

    A kind of infos is sent by mail, with a number, until the caller says that it knows it: a bit for each in one of its
    words. From then on its tables lie here, and a note beside the answer says of which kind they are. By mail alone, a step
    of CartPole with two numbers in each info takes 1.17 times the CPU time of both processes (quartiles 1.15 to 1.20).
    With Hopper's six numbers no difference was seen, because its steps are so much longer.
    """

    def __init__(self, first: int, room: Array) -> None:
        self._first, self._count = first, len(room)
        self._room = room.reshape(-1)
        self._numbers: dict[InfoKind, int] = {}
        self._kinds: dict[int, tuple[InfoKind, list[Array], Array]] = {}

    # ---- the worker's side ----

    def put(self, table: Table, known: int) -> int | Table:
        """Lay a table down and return the note that says so; a table that has to be sent comes back, with its number.

        `known` are the kinds that the caller knows.
        """
        number = self._numbers.get(table.kind)
        if number is None:
            if len(self._numbers) >= _MOST_KINDS or self._size(table.kind) > len(self._room):
                return table
            number = self._numbers[table.kind] = len(self._numbers) + 1
            self._learn(number, table.kind)
        if not known >> number & 1:
            return Table(table.first, table.kind, table.blocks, table.mask, number)
        if table.count != self._count:
            return table
        _, blocks, mask = self._kinds[number]
        for target, block in zip(blocks, table.blocks, strict=True):
            target[...] = block
        if table.mask is None:
            return _WHOLE | number
        mask[...] = table.mask
        return number

    def _size(self, kind: InfoKind) -> int:
        sizes = [np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in kind.forms]
        return self._count * (sum(sizes) + len(kind.keys))

    # ---- the caller's side ----

    def learn_from(self, infos: Infos, known: int) -> int:
        """Take note of a kind's number, if infos that came by mail have one; return what is known now."""
        if not isinstance(infos, Table) or not infos.number:
            return known
        self._learn(infos.number, infos.kind)
        return known | 1 << infos.number

    def _learn(self, number: int, kind: InfoKind) -> None:
        # The largest numbers first: then all are aligned.
        forms = [(form, len(numbers)) for form, numbers in kind.blocks()]
        order = sorted(range(len(forms)), key=lambda n: -np.dtype(forms[n][0][0]).itemsize)
        views: dict[int, Array] = {}
        offset = 0
        for n in order:
            (dtype, shape), rows = forms[n]
            views[n] = self._view((rows, self._count, *shape), dtype, offset)
            offset += views[n].nbytes
        blocks = [views[n] for n in range(len(forms))]
        self._kinds[number] = kind, blocks, self._view((len(kind.keys), self._count), np.bool_, offset)

    def _view(self, shape: tuple[int, ...], dtype: Any, offset: int) -> Array:
        return np.ndarray(shape, dtype, self._room.data, offset)

    def table(self, note: int) -> Table:
        """Return the table that a note speaks of; it is there until the next request is made."""
        kind, blocks, mask = self._kinds[note & (_WHOLE - 1)]
        return Table(self._first, kind, blocks, None if note & _WHOLE else mask)
