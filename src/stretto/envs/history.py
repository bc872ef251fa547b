"""What was done to each slot since a point from which it can be restored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.envs.layout import Array, SpaceLayout
from stretto.envs.messages import Call, Origin, ResetSlot

FALLBACK_ENTRIES = 5_000
"""How many vector steps are kept behind the nearest restorable point, for worlds that it turns out not to restore."""

_PRUNE_EVERY = 512


class _Steps:
    """Steps of all slots, or of some, as one entry: a copy of their actions."""

    __slots__ = ("actions", "rows")

    def __init__(self, actions: Any, rows: Mapping[int, int] | None) -> None:
        self.actions = actions
        self.rows = rows


class History:
    """A log of steps, calls and attributes; each slot remembers where in it its last restorable points are.

    Keeping it costs one entry a vector step, whatever the number of slots.
    """

    def __init__(self, count: int, actions: SpaceLayout, limit: int) -> None:
        self._count = count
        self._actions = actions
        self._limit = limit
        self._entries: list[Any] = []
        self._others: list[int] = []  # where the entries are that are no steps: few, and often none
        self._base = 0
        self._nearest: list[tuple[int, ResetSlot] | None] = [None] * count
        self._seeded: list[tuple[int, ResetSlot] | None] = [None] * count
        self._settled: list[dict[str, Any]] = [{} for _ in range(count)]
        self.was_reset = [False] * count
        self.overrun = [False] * count

    @property
    def end(self) -> int:
        """The index of the next entry."""
        return self._base + len(self._entries)

    def stepped(self, actions: list[Array] | Sequence[Any], slots: Sequence[int] | None) -> None:
        """Note a step: `actions` is a copy, with a row for each of `slots` (`None`: for all)."""
        rows = None if slots is None else {slot: row for row, slot in enumerate(slots)}
        self._entries.append(_Steps(actions, rows))
        if len(self._entries) % _PRUNE_EVERY == 0:
            self._prune()

    def called(self, call: Call) -> None:
        """Note a call to all worlds."""
        self._others.append(self.end)
        self._entries.append(("call", call))

    def attribute_set(self, name: str, values: Sequence[Any]) -> None:
        """Note that an attribute was set in all worlds."""
        self._others.append(self.end)
        self._entries.append(("set", name, list(values)))

    def forget(self, slot: int) -> None:
        """Note that the slot is about to be reset: what it did before will not be asked for again."""
        self._settle(slot, self.end)
        self.was_reset[slot], self.overrun[slot] = False, False
        self._nearest[slot] = self._seeded[slot] = None

    def reset(self, how: ResetSlot) -> None:
        """Note an explicit reset that has been done."""
        slot = how.slot
        self.was_reset[slot] = True
        point = (self.end, how) if how.seed is not None else None
        self._nearest[slot] = self._seeded[slot] = point

    def recorded(self, origin: Origin, how: ResetSlot) -> None:
        """Note a point that a worker recorded during the latest entry; `how` has what a reset needs besides."""
        slot = origin.slot
        self._settle(slot, self.end)
        restored = dataclasses.replace(
            how,
            seed=origin.seed,
            episode=origin.episode,
            generator=origin.generator,
            globals=origin.globals,
            options=None if origin.automatic else how.options,
            restoring=True,
        )
        self._nearest[slot] = (self.end, restored)
        self.overrun[slot] = False

    def attempts(self, slot: int) -> list[tuple[ResetSlot, list[Any]]]:
        """Return the ways to restore a slot, the best first: a reset, and the events after it."""
        points = [self._nearest[slot]]
        if self._seeded[slot] is not None and self._seeded[slot] != self._nearest[slot]:
            points.append(self._seeded[slot])
        return [
            (point[1], self._events(slot, point[0])) for point in points if point is not None and point[0] >= self._base
        ]

    def before(self, slot: int) -> list[Any]:
        """Return the attributes and calls that came before the slot's restorable points: the last of each name."""
        if self._nearest[slot] is None:
            self._settle(slot, self.end)
        return list(self._settled[slot].values())

    def _events(self, slot: int, start: int) -> list[Any]:
        events: list[Any] = []
        for entry in self._entries[start - self._base :]:
            event = self._event(entry, slot)
            if event is not None:
                events.append(event)
        return events

    def _event(self, entry: Any, slot: int) -> Any:
        match entry:
            case _Steps():
                row = slot if entry.rows is None else entry.rows.get(slot)
                if row is None:
                    return None
                if self._actions.loose:
                    return ("step", entry.actions[row])
                return ("step", self._actions.row(entry.actions, (), row))
            case ("set", name, values):
                return ("set", name, values[slot])
            case _:
                return entry

    def _settle(self, slot: int, end: int) -> None:
        """Keep what still matters of the entries from the slot's last point to `end`, which will not be replayed."""
        nearest = self._nearest[slot]
        start = self._base if nearest is None else max(nearest[0], self._base)
        for index in self._others:
            if start <= index < end:
                entry = self._entries[index - self._base]
                key = f"{entry[0]} {entry[1].name if isinstance(entry[1], Call) else entry[1]}"
                self._settled[slot].pop(key, None)
                self._settled[slot][key] = self._event(entry, slot)

    def _prune(self) -> None:
        """Drop the entries that nobody will replay."""
        end = self.end
        for slot, point in enumerate(self._nearest):
            if point is not None and end - point[0] > self._limit:
                self._settle(slot, end)
                self._nearest[slot] = None
                self.overrun[slot] = True
        needed = min((point[0] for point in self._nearest if point is not None), default=end)
        fallback = min((point[0] for point in self._seeded if point is not None), default=end)
        keep_from = min(needed, max(fallback, end - FALLBACK_ENTRIES))
        del self._entries[: keep_from - self._base]
        self._base = keep_from
        self._others = [index for index in self._others if index >= keep_from]
