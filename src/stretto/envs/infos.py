"""Infos of many environments as one dictionary of arrays with masks, exactly as Gymnasium batches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from stretto.errors import InvalidOutput, Place
from stretto.workers.mail import Sent

Entry = tuple[int, dict[str, Any]]
"""A slot and what it has to add. One slot may have two entries in a step: how an episode ended, how the next began."""

Array = np.ndarray[Any, Any]

_PYTHON_NUMBERS = (int, float, bool)

_MOST_PARTS = 4
"""Where infos are of more kinds than this, dictionaries are as good."""

_NOT_COLUMNS = frozenset(("final_obs", "final_info"))


@dataclass(frozen=True, slots=True)
class Kind(Sent):
    """What some infos have in common: their keys, the type of each key's values, and how an array holds one of them.

    What is held alike lies in one block, a row a key: numpy is asked once a block, not once a key.
    """

    keys: tuple[str, ...]
    types: tuple[type, ...]
    forms: tuple[_Form, ...]

    def blocks(self) -> Sequence[tuple[_Form, Sequence[int]]]:
        """Return how each block holds its values, and the numbers of its keys."""
        return _by_form(self.forms)


_Form = tuple[str, tuple[int, ...]]
"""The data type and the shape of one value."""


@lru_cache(256)
def _by_form(forms: tuple[_Form, ...]) -> Sequence[tuple[_Form, Sequence[int]]]:
    found: dict[_Form, list[int]] = {}
    for number, form in enumerate(forms):
        found.setdefault(form, []).append(number)
    return tuple(found.items())


@dataclass(frozen=True, slots=True)
class Columns(Sent):
    """The infos of slots that are all of one kind, as blocks: by key, by slot, and by what else a value has."""

    slots: Sequence[int]
    kind: Kind
    blocks: list[Array]

    def entries(self) -> list[Entry]:
        """Return the dictionaries that these columns were made of."""
        kind = self.kind
        columns: list[Any] = [None] * len(kind.keys)
        for (_, numbers), block in zip(kind.blocks(), self.blocks, strict=True):
            for number, row in zip(numbers, block, strict=True):
                columns[number] = row.tolist() if kind.types[number] in _PYTHON_NUMBERS else list(row)
        rows = zip(*columns, strict=True)
        return [(slot, dict(zip(kind.keys, row, strict=True))) for slot, row in zip(self.slots, rows, strict=True)]


@dataclass(frozen=True, slots=True)
class Packed(Sent):
    """The infos of some slots as columns: an eighth of the bytes, and a tenth of the time to batch, of dictionaries.

    In a step in which some slots begin an episode and others do not there are two kinds of infos, hence two `parts`.
    """

    parts: list[Columns]

    def entries(self) -> list[Entry]:
        """Return the dictionaries that these columns were made of, in the order of the slots."""
        return sorted((entry for part in self.parts for entry in part.entries()), key=itemgetter(0))


Infos = Packed | list[Entry] | None

InfoJoin = Callable[[Sequence[Infos], int], dict[Any, Any]]
"""Puts the infos of all slots together, given in the order of the slots, with the number of slots."""


def pack(entries: list[Entry]) -> Infos:
    """Make `entries` as small as they can be without losing anything."""
    if not entries:
        return None
    alike: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        alike.setdefault(tuple(entry[1]), []).append(entry)
    if len(alike) > _MOST_PARTS:
        return entries
    parts = []
    for keys, some in alike.items():
        part = _columns(keys, some)
        if part is None:
            return entries
        parts.append(part)
    return Packed(parts)


def _columns(keys: tuple[str, ...], entries: list[Entry]) -> Columns | None:
    """Return entries with the same keys as columns, if each key has numbers of one type, or arrays of one form."""
    columns = list(zip(*[info.values() for _, info in entries], strict=True))
    types = []
    for column in columns:
        found = set(map(type, column))
        if len(found) > 1:
            return None
        types.append(found.pop())
    arrays = tuple([_form_of(c) if t is np.ndarray else None for c, t in zip(columns, types, strict=True)])
    kind = _kind(keys, tuple(types), arrays)
    if kind is None:
        return None
    try:
        blocks = [_block(form, [columns[n] for n in numbers]) for form, numbers in kind.blocks()]
    except OverflowError:  # an int of more than 64 bits
        return None
    slots = [slot for slot, _ in entries]
    span = range(slots[0], slots[0] + len(slots))
    return Columns(span if slots == list(span) else slots, kind, blocks)


def _form_of(arrays: Sequence[Array]) -> _Form | None:
    dtype, shape = arrays[0].dtype, arrays[0].shape
    alike = all(one.dtype == dtype and one.shape == shape for one in arrays)
    return (dtype.str, shape) if alike and dtype.kind in "biufc" else None


@lru_cache(256)
def _kind(keys: tuple[str, ...], types: tuple[type, ...], arrays: tuple[_Form | None, ...]) -> Kind | None:
    """Return the kind of infos with these keys and types (and forms, where those are arrays), if blocks can hold them."""
    forms = []
    for key, kind, form in zip(keys, types, arrays, strict=True):
        if key in _NOT_COLUMNS:
            return None
        if kind in _PYTHON_NUMBERS or issubclass(kind, np.number):
            forms.append((np.dtype(kind).str, ()))
        elif form is not None:
            forms.append(form)
        else:
            return None
    return Kind(keys, types, tuple(forms))


def _block(form: _Form, columns: list[tuple[Any, ...]]) -> Array:
    return np.array(columns, dtype=form[0])


def merge(pieces: Sequence[Infos], count: int) -> dict[str, Any]:
    """Batch the infos of all slots, given in the order of the slots."""
    present = [piece for piece in pieces if piece is not None]
    if not present:
        return {}
    if all(isinstance(piece, Packed) for piece in present):
        # Keys come in the order in which slots have them first, as if one slot after the other were added.
        parts = sorted(
            [part for piece in present if isinstance(piece, Packed) for part in piece.parts],
            key=lambda part: part.slots[0],
        )
        plan = _plan(tuple([part.kind for part in parts]))
        if plan is not None:
            return _join(parts, plan, count)
    infos: dict[str, Any] = {}
    for piece in present:
        for slot, info in piece.entries() if isinstance(piece, Packed) else piece:
            add_info(infos, info, slot, count)
    return infos


def by_slot(pieces: Sequence[Infos], _: int) -> dict[Any, Any]:
    """Return the infos as the worlds gave them: a list for each slot that has any.

    It has two where an episode ended and the next one began.
    """
    infos: dict[int, list[dict[str, Any]]] = {}
    for piece in pieces:
        for slot, info in piece.entries() if isinstance(piece, Packed) else piece or ():
            infos.setdefault(slot, []).append(info)
    return infos


@dataclass(frozen=True, slots=True)
class _Plan:
    """How parts of some kinds become one batch.

    `whole` is the kind of the batch; a part's keys are its rows `masks`, and each of the part's blocks goes to the
    rows of one of the batch's.
    """

    whole: Kind
    masks: list[Any]
    blocks: list[list[tuple[int, Any]]]


@lru_cache(256)
def _plan(kinds: tuple[Kind, ...]) -> _Plan | None:
    """Return how parts of these kinds are joined; `None` if a key has different types of values in them."""
    keys: dict[str, tuple[type, _Form]] = {}
    for kind in kinds:
        for key, *what in zip(kind.keys, kind.types, kind.forms, strict=True):
            if keys.setdefault(key, (what[0], what[1])) != (what[0], what[1]):
                return None
    whole = Kind(tuple(keys), tuple([t for t, _ in keys.values()]), tuple([form for _, form in keys.values()]))
    place = {key: number for number, key in enumerate(whole.keys)}
    where = {number: (b, row) for b, (_, ns) in enumerate(whole.blocks()) for row, number in enumerate(ns)}
    masks, blocks = [], []
    for kind in kinds:
        masks.append(_rows([place[key] for key in kind.keys]))
        targets = []
        for _, numbers in kind.blocks():
            found = [where[place[kind.keys[number]]] for number in numbers]
            targets.append((found[0][0], _rows([row for _, row in found])))
        blocks.append(targets)
    return _Plan(whole, masks, blocks)


def _rows(numbers: list[int]) -> Any:
    """Return numbers as a slice if they are one, which numpy is faster with, else as a column of indices."""
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return np.array(numbers)[:, None]


def _join(parts: list[Columns], plan: _Plan, count: int) -> dict[str, Any]:
    whole = plan.whole
    blocks = [np.zeros((len(ns), count, *shape), dtype) for (dtype, shape), ns in whole.blocks()]
    masks = np.zeros((len(whole.keys), count), np.bool_)
    for part, mask, targets in zip(parts, plan.masks, plan.blocks, strict=True):
        slots: Any = part.slots
        if isinstance(slots, range):
            slots = slice(slots.start, slots.stop)
        masks[_index(mask, slots)] = True
        for (number, rows), block in zip(targets, part.blocks, strict=True):
            blocks[number][_index(rows, slots)] = block
    columns: list[Any] = [None] * len(whole.keys)
    for (_, numbers), block in zip(whole.blocks(), blocks, strict=True):
        for number, column in zip(numbers, block, strict=True):
            columns[number] = column
    infos: dict[str, Any] = {}
    for key, column, mask in zip(whole.keys, columns, masks, strict=True):
        infos[key] = column
        infos[f"_{key}"] = mask
    return infos


def _index(rows: Any, slots: Any) -> tuple[Any, Any]:
    # A column of rows spans a grid with a list of slots; with a slice of them it has to be a plain list itself.
    return (rows[:, 0], slots) if isinstance(slots, slice) and not isinstance(rows, slice) else (rows, slots)


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
