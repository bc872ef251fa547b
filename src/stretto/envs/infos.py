"""Infos of many environments as one dictionary of arrays with masks, exactly as Gymnasium batches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from stretto.errors import InvalidOutput, Place
from stretto.spaces import Array
from stretto.workers.mail import Sent

SlotInfo = tuple[int, dict[str, Any]]
"""A slot and what it has to add. One slot may have two entries in a step: how an episode ended, how the next began."""

_PYTHON_NUMBERS = (int, float, bool)

_SPARSE = 4
"""Where fewer than one slot in so many has an info, dictionaries are smaller than a table."""

_NOT_IN_TABLES = frozenset(("final_obs", "final_info"))

_Form = tuple[str, tuple[int, ...]]
"""The data type and the shape of one value."""


@dataclass(frozen=True, slots=True)
class InfoKind(Sent):
    """What infos have in common: their keys, the type of each key's values, and how an array holds one of them.

    What is held alike lies in one block, a row a key: numpy is asked once a block, not once a key.
    """

    keys: tuple[str, ...]
    types: tuple[type, ...]
    forms: tuple[_Form, ...]

    def blocks(self) -> Sequence[tuple[_Form, Sequence[int]]]:
        """Return how each block holds its values, and the numbers of its keys."""
        return _by_form(self.forms)


@lru_cache(256)
def _by_form(forms: tuple[_Form, ...]) -> Sequence[tuple[_Form, Sequence[int]]]:
    found: dict[_Form, list[int]] = {}
    for number, form in enumerate(forms):
        found.setdefault(form, []).append(number)
    return tuple(found.items())


@dataclass(frozen=True, slots=True)
class Table(Sent):
    """The infos of the slots from `first` on: blocks by key, by slot, and by what else a value has.

    `mask` says by key and slot what is there; `None`: all of it. Where its `kind` has a `number` it is known by it from
    now on.
    """

    first: int
    kind: InfoKind
    blocks: list[Array]
    mask: Array | None
    number: int = 0

    @property
    def count(self) -> int:
        return int(self.blocks[0].shape[1])

    def entries(self) -> list[SlotInfo]:
        """Return the dictionaries that this was made of."""
        kind = self.kind
        columns: list[Any] = [None] * len(kind.keys)
        for (_, numbers), block in zip(kind.blocks(), self.blocks, strict=True):
            for number, row in zip(numbers, block, strict=True):
                columns[number] = row.tolist() if kind.types[number] in _PYTHON_NUMBERS else list(row.copy())
        there = [[True] * self.count] * len(columns) if self.mask is None else self.mask.tolist()
        infos: list[dict[str, Any]] = [{} for _ in range(self.count)]
        for key, column, has in zip(kind.keys, columns, there, strict=True):
            for info, value, is_there in zip(infos, column, has, strict=True):
                if is_there:
                    info[key] = value
        return [(slot, info) for slot, info in enumerate(infos, self.first) if info]


@dataclass(frozen=True, slots=True)
class BatchInfos(Sent):
    """The infos of the slots from `first` on, batched by worlds that are batched themselves."""

    first: int
    count: int
    infos: dict[str, Any]

    def entries(self) -> list[SlotInfo]:
        """Return a dictionary for each slot that has one."""
        rows = ((self.first + i, info_of(self.infos, i)) for i in range(self.count))
        return [(slot, info) for slot, info in rows if info]


Infos = Table | BatchInfos | list[SlotInfo] | None

InfoJoin = Callable[[Sequence[Infos], int], dict[Any, Any]]
"""Puts the infos of all slots together, given in the order of the slots, with the number of slots."""


def entries(infos: Infos) -> list[SlotInfo]:
    """Return infos as a dictionary for each slot that has one, however they came."""
    return [] if infos is None else infos if isinstance(infos, list) else infos.entries()


def pack(entries: list[SlotInfo], span: range | None = None) -> Infos:
    """Make `entries` as small as they can be without losing anything: a table, if one can hold them.

    A table is an eighth of the bytes, and a tenth of the time to batch. It has the slots of `span`, or those from the
    first to the last that has an info.
    """
    if not entries:
        return None
    slots = [slot for slot, _ in entries]
    if span is None:
        span = range(slots[0], slots[-1] + 1)
    if len(entries) * _SPARSE < len(span) or any(one >= other for one, other in pairwise(slots)):
        return entries
    names = [tuple(info) for _, info in entries]
    kinds = dict(zip(names, [info for _, info in entries], strict=True))
    keys = tuple(dict.fromkeys(chain.from_iterable(kinds)))
    if set(map(type, keys)) != {str}:  # True and 1 are equal, and not the same
        return entries
    rows: list[Any] = [info.values() for _, info in entries]
    mask = None
    if len(kinds) > 1 or len(entries) < len(span):
        zeros = [_zero(next(info[key] for info in kinds.values() if key in info)) for key in keys]
        mask = np.ones((len(keys), len(span)), np.bool_)
        if any(tuple([key for key in keys if key in info]) != own for own, info in kinds.items()):
            return entries  # a table has its keys in one order
        rows = _filled(entries, names, span, keys, zeros, mask)
    columns = list(zip(*rows, strict=True))
    kind = _kind_of(keys, columns)
    if kind is None:
        return entries
    try:
        blocks = [np.array([columns[n] for n in numbers], dtype=form[0]) for form, numbers in kind.blocks()]
    except OverflowError:  # an int of more than 64 bits
        return entries
    return Table(span.start, kind, blocks, mask)


def _filled(
    entries: list[SlotInfo],
    names: list[tuple[str, ...]],
    span: range,
    keys: tuple[str, ...],
    zeros: list[Any],
    mask: Array,
) -> list[Any]:
    """Return a row of values for each slot, with zeros in the place of what is not there; take that out of the mask."""
    rows: list[Any] = [None] * len(span)
    for (slot, info), own in zip(entries, names, strict=True):
        place = slot - span.start
        if own == keys:
            rows[place] = info.values()
        else:
            rows[place] = [info.get(key, zero) for key, zero in zip(keys, zeros, strict=True)]
            mask[:, place] = [key in info for key in keys]
    if len(entries) < len(span):
        for place, row in enumerate(rows):
            if row is None:
                rows[place], mask[:, place] = zeros, False
    return rows


def _zero(value: Any) -> Any:
    """Return what a table has in the place of a value like this that is not there, if it can hold such."""
    kind = type(value)
    if kind is np.ndarray:
        return np.zeros_like(value)
    return kind() if kind in _PYTHON_NUMBERS or issubclass(kind, np.number) else None


def _kind_of(keys: tuple[str, ...], columns: list[tuple[Any, ...]]) -> InfoKind | None:
    """Return what these infos, given by key, have in common, if each key has numbers of one type or arrays of one form."""
    types, forms = [], []
    for column in columns:
        found = set(map(type, column))
        kind = found.pop()
        if found:
            return None
        types.append(kind)
        forms.append(_form_of(column) if kind is np.ndarray else None)
    return _kind(keys, tuple(types), tuple(forms))


def _form_of(arrays: Sequence[Array]) -> _Form | None:
    dtype, shape = arrays[0].dtype, arrays[0].shape
    alike = all(one.dtype == dtype and one.shape == shape for one in arrays)
    return (dtype.str, shape) if alike and dtype.kind in "biufc" else None


@lru_cache(256)
def _kind(keys: tuple[str, ...], types: tuple[type, ...], arrays: tuple[_Form | None, ...]) -> InfoKind | None:
    """Return the kind of infos with these keys and types (and forms, where those are arrays), if blocks can hold them."""
    forms: list[_Form] = []
    for key, kind, form in zip(keys, types, arrays, strict=True):
        if key in _NOT_IN_TABLES:
            return None
        if kind in _PYTHON_NUMBERS or (issubclass(kind, np.number) and np.dtype(kind).kind in "iufc"):
            forms.append((np.dtype(kind).str, ()))
        elif form is not None:
            forms.append(form)
        else:
            return None
    return InfoKind(keys, types, tuple(forms))


_KindRows = tuple[Any, list[tuple[int, Any]]]
"""Where the keys of one kind are in tables of another: in the mask, and for each block which block, and where there."""


@lru_cache(256)
def _plan(kinds: tuple[InfoKind, ...]) -> tuple[InfoKind, list[_KindRows]] | None:
    """Return the kind of a table that holds infos of these kinds, and where each of those has its rows.

    `None` if a key has values of different types in them.
    """
    keys: dict[str, tuple[type, _Form]] = {}
    for kind in kinds:
        for key, of_key, form in zip(kind.keys, kind.types, kind.forms, strict=True):
            if keys.setdefault(key, (of_key, form)) != (of_key, form):
                return None
    whole = InfoKind(tuple(keys), tuple([t for t, _ in keys.values()]), tuple([form for _, form in keys.values()]))
    place = {key: number for number, key in enumerate(whole.keys)}
    where = {number: (b, row) for b, (_, ns) in enumerate(whole.blocks()) for row, number in enumerate(ns)}
    rows: list[_KindRows] = []
    for kind in kinds:
        targets = []
        for _, numbers in kind.blocks():
            found = [where[place[kind.keys[number]]] for number in numbers]
            targets.append((found[0][0], _rows([row for _, row in found])))
        rows.append((_rows([place[key] for key in kind.keys]), targets))
    return whole, rows


def _rows(numbers: list[int]) -> Any:
    """Return numbers as a slice if they are one: numpy is faster with it."""
    together = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return slice(numbers[0], numbers[0] + len(numbers)) if together else numbers


def merge(pieces: Sequence[Infos], count: int) -> dict[str, Any]:
    """Batch the infos of all slots, given in the order of the slots."""
    present = [piece for piece in pieces if piece is not None]
    if not present:
        return {}
    if isinstance(present[0], BatchInfos) and present[0].count == count:
        return present[0].infos
    tables = [piece for piece in present if isinstance(piece, Table)]
    if len(tables) == len(present):
        plan = _plan(tuple([table.kind for table in tables]))
        if plan is not None:
            return _join(tables, *plan, count)
    infos: dict[str, Any] = {}
    for piece in present:
        for slot, info in entries(piece):
            add_info(infos, info, slot, count)
    return infos


def merge_rows(pieces: Iterable[Infos], slots: Sequence[int]) -> dict[str, Any]:
    """Batch the infos of `slots`, a row for each, whatever others the pieces have."""
    row_of = {slot: row for row, slot in enumerate(slots)}
    by_row = [(row_of[slot], info) for infos in pieces for slot, info in entries(infos) if slot in row_of]
    return merge([sorted(by_row, key=itemgetter(0))], len(slots))


def by_slot(pieces: Sequence[Infos], _: int) -> dict[Any, Any]:
    """Return the infos as the worlds gave them: a list for each slot that has any.

    It has two where an episode ended and the next one began.
    """
    infos: dict[int, list[dict[str, Any]]] = {}
    for piece in pieces:
        for slot, info in entries(piece):
            infos.setdefault(slot, []).append(info)
    return infos


def _join(tables: list[Table], whole: InfoKind, rows_of: list[_KindRows], count: int) -> dict[str, Any]:
    """Put tables side by side. Keys come as slots have them first, as if one slot after the other were added."""
    blocks = [np.zeros((len(numbers), count, *shape), dtype) for (dtype, shape), numbers in whole.blocks()]
    masks = np.zeros((len(whole.keys), count), np.bool_)
    for table, (of_mask, of_blocks) in zip(tables, rows_of, strict=True):
        span = slice(table.first, table.first + table.count)
        masks[of_mask, span] = True if table.mask is None else table.mask
        for (number, of_block), block in zip(of_blocks, table.blocks, strict=True):
            blocks[number][of_block, span] = block
    columns: list[Any] = [None] * len(whole.keys)
    for (_, numbers), block in zip(whole.blocks(), blocks, strict=True):
        for number, column in zip(numbers, block, strict=True):
            columns[number] = column
    infos: dict[str, Any] = {}
    for key, column, mask in zip(whole.keys, columns, masks, strict=True):
        infos[key] = column
        infos[f"_{key}"] = mask
    return infos


def add_info(infos: dict[str, Any], info: dict[str, Any], i: int, count: int) -> None:
    """Add the info of one environment to the batch, in place."""
    for key, value in info.items():
        if key == "final_obs":
            array = infos.get(key)
            if array is None:
                array = np.full(count, None, dtype=object)
            array[i] = value
        elif isinstance(value, dict):
            array = infos.get(key, {})
            add_info(array, value, i, count)
        else:
            array = infos.get(key)
            if array is None:
                array = _column_for(value, count)
            try:
                array[i] = value
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidOutput(
                    f"infos under one key must be of one kind, and {key!r} of slot {i} is {value!r}, which does not fit "
                    f"{array.dtype} of the slots before: {error}",
                    Place("batching infos", slot=i),
                ) from error
        mask = infos.get(f"_{key}")
        if mask is None:
            mask = np.zeros(count, dtype=np.bool_)
        mask[i] = True
        infos[key], infos[f"_{key}"] = array, mask


def _column_for(value: Any, count: int) -> np.ndarray[Any, Any]:
    kind = type(value)
    if kind in _PYTHON_NUMBERS or issubclass(kind, np.number):
        return np.zeros(count, dtype=kind)
    if isinstance(value, np.ndarray):
        return np.zeros((count, *value.shape), dtype=value.dtype)
    return np.full(count, None, dtype=object)


def info_of(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """Return the part of batched infos that belongs to row `i`: the reverse of batching."""
    return {
        key: info_of(value, i) if isinstance(value, dict) else value[i]
        for key, value in infos.items()
        if f"_{key}" in infos and infos[f"_{key}"][i]
    }
