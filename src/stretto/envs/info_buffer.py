"""InfoBuffer: shared memory on which a worker lays the infos of a step, so that no mail is needed for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.envs.infos import InfoKind, Infos, Table
from stretto.spaces import Array

_MOST_KINDS = 60
_WHOLE = 1 << 7


class InfoBuffer:
    """The room of the slots from `first` on, seen by their worker or by the caller.

    A kind of infos is sent by mail, with a number, until the caller says that it knows it: a bit for each in one of its
    words. From then on its tables lie here, and a note beside the answer says of which kind they are.
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
        sizes = [len(numbers) * _bytes(form) for form, numbers in kind.blocks()]
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


def _bytes(form: tuple[str, tuple[int, ...]]) -> int:
    return int(np.dtype(form[0]).itemsize * np.prod(form[1], dtype=np.int64))
