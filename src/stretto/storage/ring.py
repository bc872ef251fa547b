"""The writer of a ring: where the next row goes, what is still there, and who must let go of it first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import SnapshotHeld, UsageError
from stretto.spaces import Array
from stretto.storage.block import Rows
from stretto.storage.memory import MOST_HOLDS, Hold, RingMemory

_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 5e-5, 5e-3


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a writer waits for snapshots, and what it does between two looks: `wait(seconds)`.

    An owner with workers to look after passes a `wait` that does so, and releases what a dead one held.
    """

    seconds: float = 60.0
    wait: Callable[[float], object] = time.sleep


class Ring:
    """Writes rows, and keeps count of them. Numbers of rows grow for ever; places repeat."""

    def __init__(self, memory: RingMemory, patience: Patience) -> None:
        self.memory = memory
        self.head = 0
        self._patience = patience
        self._held: dict[Hold, int] = {}  # the first row of each
        self._serial = 0

    # ---- writing ----

    def make_room(self, count: int) -> None:
        """Wait until `count` rows and the one after them overwrite nothing held.

        Raises:
            UsageError: if there can never be so much room.
            SnapshotHeld: if a snapshot was not released in time.
        """
        layout = self.memory.layout
        if not 0 < count <= layout.longest_piece:
            raise UsageError(
                f"a piece must have 1 to {layout.longest_piece} rows, got {count}; make the buffer for longer ones"
            )
        row = self.head + count + 1 - layout.rows
        if not self._in_the_way(row):
            return
        until, look = time.monotonic() + self._patience.seconds, _FIRST_LOOK_SECONDS
        while holds := self._in_the_way(row):
            if time.monotonic() >= until:
                raise SnapshotHeld(
                    f"a snapshot must be released before new experience overwrites it, got {len(holds)} still held after "
                    f"{self._patience.seconds:g} s; release it, or drop it if its process has died"
                )
            self._patience.wait(look)
            look = min(2 * look, _LONGEST_LOOK_SECONDS)

    def put(self, row: int, columns: Mapping[str, Array]) -> None:
        """Write consecutive rows, the first of them number `row`."""
        size = self.memory.layout.rows
        for name, values in columns.items():
            target, place = self.memory.rows[name], row % size
            before_wrap = min(len(values), size - place)
            target[place : place + before_wrap] = values[:before_wrap]
            if before_wrap < len(values):
                target[: len(values) - before_wrap] = values[before_wrap:]

    def put_rows(self, rows: Rows, columns: Mapping[str, Array]) -> None:
        """Write a piece at the head, with more `columns`, and what follows it."""
        self.put(self.head, {**rows.columns, **columns})
        if rows.following is not None:
            self.put(self.head + rows.count, {name: values[None] for name, values in rows.following.items()})

    # ---- what is there ----

    @property
    def oldest(self) -> int:
        """The first row that is kept."""
        return max(0, self.head - self.memory.layout.capacity)

    def hold(self) -> Hold:
        """Keep all that is there now until the hold is released.

        Raises:
            UsageError: if as many are held as can be.
        """
        self._forget_released()
        taken = {hold.place for hold in self._held}
        place = next((place for place in range(MOST_HOLDS) if place not in taken), None)
        if place is None:
            raise UsageError(f"at most {MOST_HOLDS} snapshots can be held at once, got one more; release some")
        self._serial += 1
        hold = Hold(place, self._serial)
        self._held[hold] = self.oldest
        self.memory.holds[place] = hold.serial
        return hold

    def _in_the_way(self, row: int) -> list[Hold]:
        """Return the snapshots that show rows before `row`."""
        self._forget_released()
        return [hold for hold, first in self._held.items() if first < row]

    def _forget_released(self) -> None:
        self._held = {hold: first for hold, first in self._held.items() if self.memory.holds[hold.place] == hold.serial}

    # ---- saving ----

    def counters(self) -> dict[str, Any]:
        """Return what `set_counters` needs to go on from here."""
        return {"first": self.oldest, "head": self.head}

    def set_counters(self, counters: Mapping[str, Any]) -> None:
        """Go on from there, once `arrays` are filled as they were; no snapshot is held any more."""
        self.head = int(counters["head"])
        self.memory.holds[:] = 0

    def arrays(self, first: int) -> dict[str, list[Array]]:
        """Return all that is kept from row `first` on, as it lies in memory: to be saved, or to be filled."""
        return {f"rows {name}": self.unrolled(array, first) for name, array in self.memory.rows.items()}

    def unrolled(self, array: Array, first: int) -> list[Array]:
        """Return the rows from `first` to the one that follows the last, in their order: one part, or two."""
        start, count = first % len(array), self.head + 1 - first
        parts = [array[start : start + count], array[: max(0, start + count - len(array))]]
        return parts if len(parts[1]) else parts[:1]
