"""What was done to each slot since a point from which it can be restored."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from stretto.core import NextEpisode
from stretto.envs.messages import Attempt, Call, Origin, ResetSlot, SetAttr, Steps
from stretto.spaces import Array, SpaceLayout

FALLBACK_ENTRIES = 5_000
"""How many steps are kept behind the nearest restorable point, for worlds that it turns out not to restore."""

FALLBACK_BYTES = 128 << 20
"""How much the actions of these steps may take; with many environments and agents, fewer of them are kept."""

MOST_CALLS = 256
"""How many calls and attributes from before a slot's restorable point are kept; of more, the last of each name."""

_PRUNE_EVERY = 512

Row = tuple[Any, ...]
"""The action of one slot, as one array a leaf (where actions have no fixed size: just itself)."""


@dataclass(frozen=True, slots=True)
class _Point:
    """A reset, and how much had been noted before it."""

    how: ResetSlot
    entries: int
    own: int
    steps: int
    settled: int


class _Log:
    """A list whose oldest items are dropped, while positions go on."""

    __slots__ = ("base", "items")

    def __init__(self) -> None:
        self.base = 0
        self.items: list[Any] = []

    @property
    def end(self) -> int:
        return self.base + len(self.items)

    def since(self, position: int) -> Iterator[Any]:
        return islice(self.items, position - self.base, None)

    def drop_before(self, position: int) -> None:
        if position > self.base:
            del self.items[: position - self.base]
            self.base = position


class History:
    """A log of what was done to all slots, and one of each slot's own steps and resets.

    Keeping it costs one entry a vector step, whatever the number of slots. Each slot remembers two points: the nearest
    from which it can be restored, and its last seeded reset.
    """

    def __init__(self, count: int, actions: SpaceLayout, limit: int) -> None:
        self._actions = actions
        self._limit = limit
        self._entries = _Log()  # a list is a step of all slots, anything else a change
        self._steps = 0
        self._others: list[int] = []  # where the entries are that are no steps: few, and often none
        # Of each slot: (entries noted before it; a row of actions, a reset or what is next).
        self._own = [_Log() for _ in range(count)]
        self._own_steps = [0] * count
        self._noted = 0
        self._fallback = FALLBACK_ENTRIES
        self._nearest: list[_Point | None] = [None] * count
        self._seeded: list[_Point | None] = [None] * count
        self._settled: list[list[Any]] = [[] for _ in range(count)]  # calls and attributes before the nearest point
        self._settled_to = [0] * count
        self._block: tuple[int, int, list[Array]] | None = None  # steps of all slots side by side, while it is needed
        self.was_reset = [False] * count
        self.overrun = [False] * count

    @property
    def end(self) -> int:
        """How much was noted so far."""
        return self._noted

    # ---- taking note ----

    def stepped(self, actions: list[Array] | list[Any], slots: Sequence[int] | None) -> None:
        """Note a step: `actions` is a copy, with a row for each of `slots` (`None`: for all)."""
        if slots is None:
            self._steps += 1
            self._entries.items.append(actions)
            if self._steps == 1 and not self._actions.loose:
                taken = max(1, sum(array.nbytes for array in actions))
                self._fallback = min(FALLBACK_ENTRIES, FALLBACK_BYTES // taken)
        else:
            end = self._entries.end
            for row, slot in enumerate(slots):
                self._own_steps[slot] += 1
                self._own[slot].items.append((end, self._row(actions, row)))
        self._noted += 1
        if self._noted % _PRUNE_EVERY == 0:
            self._prune()

    def changed(self, change: Call | SetAttr) -> None:
        """Note a call, or that an attribute was set, in all worlds or in some."""
        self._others.append(self._entries.end)
        self._entries.items.append(change)
        self._noted += 1

    def told_next(self, slot: int, episode: NextEpisode) -> None:
        """Note what a slot was told to play next."""
        self._own[slot].items.append((self._entries.end, episode))
        self._noted += 1

    def forget(self, slot: int) -> None:
        """Note that what the slot did before will not be asked for again."""
        self._settle(slot)
        self.was_reset[slot], self.overrun[slot] = False, False
        self._nearest[slot] = self._seeded[slot] = None

    def reset(self, how: ResetSlot) -> None:
        """Note an explicit reset that has been done. One without a seed goes on from what was before."""
        slot = how.slot
        if how.seed is not None:
            self.forget(slot)
            self._nearest[slot] = self._seeded[slot] = self._here(how)
        elif self._nearest[slot] is not None:
            self._own[slot].items.append((self._entries.end, how))
            self._noted += 1
        self.was_reset[slot] = True

    def recorded(self, origin: Origin, how: ResetSlot) -> None:
        """Note a point that a worker recorded just now; `how` has what a reset needs besides."""
        slot = origin.slot
        self._settle(slot)
        restored = dataclasses.replace(
            how,
            seed=origin.seed,
            episode=origin.episode,
            generator=origin.generator,
            globals=origin.globals,
            options=origin.options if origin.automatic else how.options,
            next=None if origin.automatic else how.next,
            restoring=True,
        )
        self._nearest[slot] = self._here(restored)
        self.overrun[slot] = False

    def _here(self, how: ResetSlot) -> _Point:
        slot = how.slot
        return _Point(how, self._entries.end, self._own[slot].end, self._steps_of(slot), len(self._settled[slot]))

    def _steps_of(self, slot: int) -> int:
        return self._steps + self._own_steps[slot]

    # ---- giving it out ----

    def steps_to_replay(self, slot: int) -> float:
        """Return how many steps it takes to restore a slot; `inf` if that is impossible."""
        if not self.was_reset[slot]:
            return 0
        nearest = self._nearest[slot]
        steps = math.inf if nearest is None else self._steps_of(slot) - nearest.steps
        return steps if steps <= self._limit else math.inf

    def attempts(self, slot: int) -> list[Attempt]:
        """Return the ways to restore a slot, the best first."""
        nearest, seeded = self._nearest[slot], self._seeded[slot]
        points = [nearest] if seeded is nearest else [nearest, seeded]
        return [
            Attempt(self._settled[slot][: point.settled], point.how, self._events(slot, point))
            for point in points
            if point is not None and self._has(point)
        ]

    def release(self) -> None:
        """Let go of what was only needed to give several slots out."""
        self._block = None

    def changes(self, slot: int) -> list[Any]:
        """Return the calls and attributes that have changed the slot's world since it was built."""
        nearest = self._nearest[slot]
        if nearest is None:
            self._settle(slot)
            return list(self._settled[slot])
        later = self._others[bisect_left(self._others, nearest.entries) :]
        events = [self._event(self._entries.items[position - self._entries.base], slot) for position in later]
        return self._settled[slot] + [event for event in events if event is not None]

    def _has(self, point: _Point) -> bool:
        """Whether all that came after a point is still there and within the limit."""
        slot = point.how.slot
        kept = point.entries >= self._entries.base and point.own >= self._own[slot].base
        if kept and self._steps_of(slot) - point.steps > self._limit:
            self.overrun[slot] = True
            return False
        return kept

    def _events(self, slot: int, point: _Point) -> list[Any]:
        """Return what happened to a slot after a point, in order; steps that follow each other as one event."""
        plain = self._plain_steps(slot, point)
        if plain is not None:
            return plain
        events: list[Any] = []
        run: list[Row] = []
        for event in self._merged(slot, point):
            if isinstance(event, list):
                run.append(self._row(event, slot))
            elif isinstance(event, tuple):
                run.append(event)
            else:
                own = self._event(event, slot)
                if own is not None:
                    self._add_run(events, run)
                    events.append(own)
        self._add_run(events, run)
        return events

    def _plain_steps(self, slot: int, point: _Point) -> list[Any] | None:
        """Return what happened after a point if it was only steps of all slots: one slice of what all slots share.

        Slot by slot and step by step, this was half of the time that bringing back 32 CartPoles took beyond their replay.
        """
        others, end = self._others, self._entries.end
        if self._actions.loose or self._own[slot].end > point.own or (others and others[-1] >= point.entries):
            return None
        if point.entries == end:
            return []
        first = max(self._entries.base, others[-1] + 1 if others else 0)
        if self._block is None or self._block[:2] != (first, end):
            items = self._entries.items[first - self._entries.base :]
            self._block = first, end, [np.stack(leaf) for leaf in zip(*items, strict=True)]
        return [Steps([leaf[point.entries - first :, slot].copy() for leaf in self._block[2]])]

    def _merged(self, slot: int, point: _Point) -> Iterator[Any]:
        own = self._own[slot].since(point.own)
        next_own = next(own, None)
        for position, entry in enumerate(self._entries.since(point.entries), point.entries):
            while next_own is not None and next_own[0] <= position:
                yield next_own[1]
                next_own = next(own, None)
            yield entry
        while next_own is not None:
            yield next_own[1]
            next_own = next(own, None)

    def _add_run(self, events: list[Any], run: list[Row]) -> None:
        if run:
            leaves = list(zip(*run, strict=True))
            events.append(Steps(list(leaves[0]) if self._actions.loose else [np.stack(leaf) for leaf in leaves]))
            run.clear()

    def _row(self, actions: Sequence[Any], row: int) -> Row:
        return (actions[row],) if self._actions.loose else tuple(array[row] for array in actions)

    def _event(self, entry: Any, slot: int) -> Any:
        """Return what an entry that is no step means for a slot; `None` if nothing."""
        match entry:
            case SetAttr(values=values):
                return entry.of([slot]) if slot in values else None
            case Call(slots=slots) if slots is not None and slot not in slots:
                return None
            case _:
                return entry

    # ---- forgetting ----

    def _settle(self, slot: int) -> None:
        """Keep the calls and attributes since the slot's last point: the steps between them will not be replayed."""
        settled, base = self._settled[slot], self._entries.base
        for position in self._others[bisect_left(self._others, self._settled_to[slot]) :]:
            event = self._event(self._entries.items[position - base], slot)
            if event is not None:
                settled.append(event)
        self._settled_to[slot] = self._entries.end
        if len(settled) > MOST_CALLS:
            last = {(type(change), change.name): n for n, change in enumerate(settled)}
            settled[:] = [settled[n] for n in sorted(last.values())[-MOST_CALLS // 2 :]]
            self._seeded[slot] = None  # how much was settled before it cannot be told any more

    def _prune(self) -> None:
        """Drop what nobody will replay."""
        end = self._entries.end
        keep_from = end
        for slot, log in enumerate(self._own):
            nearest, seeded = self._nearest[slot], self._seeded[slot]
            if nearest is not None and self._steps_of(slot) - nearest.steps > self._limit:
                self._settle(slot)
                self._nearest[slot] = self._seeded[slot] = nearest = seeded = None
                self.overrun[slot] = True
            if nearest is None:
                self._settle(slot)
                log.drop_before(log.end)
                continue
            fallback = nearest if seeded is None else seeded
            keep_from = min(keep_from, nearest.entries, max(fallback.entries, end - self._fallback))
            log.drop_before(min(nearest.own, max(fallback.own, log.end - self._fallback)))
        self._entries.drop_before(keep_from)
        self._others = [position for position in self._others if position >= keep_from]
