"""What cogs of Foundry remember of the map, and how they find their way on it: shared by the policies that play it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core import Observation
from stretto.games import foundry as game
from stretto.games.foundry_maps import ORES

Ores = tuple[int, int, int]

SIDE = 2 * (game.MAX_SIDE - 1 + game.REACH) + 1
"""Cells of the remembered square: wherever a cog started, the map and all that it can see lie within."""

HOME = SIDE // 2
ALL_CELLS = (1 << SIDE * SIDE) - 1
KINDS = range(len(ORES))
CHARGER, FORGE = len(ORES), len(ORES) + 1
"""Kinds of sites that follow those of the ores."""

_DIRECTIONS = {-SIDE: game.NORTH, 1: game.EAST, SIDE: game.SOUTH, -1: game.WEST}


def spread(cells: int) -> int:
    """Return the cells beside `cells`."""
    return cells << 1 | cells >> 1 | cells << SIDE | cells >> SIDE


def cells_in(bits: int) -> list[int]:
    """Return the numbers of the cells in a set, in order."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def union(sets: Iterable[int]) -> int:
    """Return the cells that are in any of several sets."""
    return reduce(or_, sets, 0)


def waves(cells: int, passable: int) -> Iterator[int]:
    """Yield the cells that are 0, 1, 2 and more steps away from `cells`, over those that are passable."""
    left = passable | cells
    while cells:
        yield cells
        left ^= cells
        cells = spread(cells) & left


def first_steps(here: int, goals: int, passable: int) -> tuple[float, int]:
    """Return how far the nearest goal is, and the cells beside `here` from which a shortest way leads on."""
    if goals >> here & 1:
        return 0, 0
    beside = spread(1 << here)
    for distance, wave in enumerate(waves(goals & passable, passable), 1):
        if reached := wave & beside:
            return distance, reached
    return math.inf, 0


def distances(source: int, targets: int, passable: int) -> dict[int, int]:
    """Return how far each of the targets is that can be reached, the nearest first."""
    found: dict[int, int] = {}
    for distance, wave in enumerate(waves(1 << source, passable)):
        if reached := wave & targets:
            targets ^= reached
            found.update(dict.fromkeys(cells_in(reached), distance))
        if not targets:
            break
    return found


def _bits(cells: NDArray[Any]) -> int:
    return int.from_bytes(np.packbits(cells, bitorder="little").tobytes(), "little")


class Memory:
    """What one cog knows: itself as it is now, and the map as it last saw each part of it.

    Of what it has seen, only what it can reach over cells that it has seen counts.
    """

    def __init__(self) -> None:
        self._seen = np.zeros((len(game.PLANE_NAMES), SIDE, SIDE), np.uint8)
        self._open = np.zeros((SIDE, SIDE), bool)
        self._known = np.zeros((SIDE, SIDE), bool)
        self._seen_on = np.zeros((SIDE, SIDE), np.int32)
        self._units = self._seen.reshape(len(game.PLANE_NAMES), -1)
        self.turn = -1
        self.turns_left = 1000
        self.energy = 0
        self.ores: Ores = (0, 0, 0)
        self._seen_open = 0
        self.here = self.free = self.others = 0
        self.deposits = [0 for _ in KINDS]
        self.ever_deposits = [0 for _ in KINDS]
        self.chargers = self.forges = 0
        self._maps: tuple[NDArray[Any], ...] = self._seen, self._open, self._known, self._seen_on
        self._before: tuple[Any, list[NDArray[Any]]] | None = None  # what was known of the cells that were seen last

    def snapshot(self) -> dict[str, Any]:
        """Return what it is now; of the maps it remembers itself what the next look changes."""
        self._before = None
        kept = {name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray)}
        return {name: list(value) if isinstance(value, list) else value for name, value in kept.items()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Become what it was at a snapshot, after at most one look."""
        if self._before is not None:
            window, known = self._before
            for cells, before in zip(self._maps, known, strict=True):
                cells[..., *window] = before
        vars(self).update(snapshot)

    def take(self, observation: Observation) -> None:
        """Take in what the cog sees, in place of what it knew of these cells."""
        planes, own = observation["planes"], observation["self"].tolist()
        self.turn += 1
        if played := own[game.STEP_ENTRY]:
            self.turns_left = round(self.turn * (1 - played) / played)
        self.energy = round(own[game.ENERGY_ENTRY] * game.FULL_ENERGY)
        copper, iron, quartz = own[game.ORE_ENTRY : game.ORE_ENTRY + len(ORES)]
        self.ores = (round(copper * game.CARGO), round(iron * game.CARGO), round(quartz * game.CARGO))
        row = HOME + round(own[game.PLACE_ENTRY] * game.MAX_SIDE)
        column = HOME + round(own[game.PLACE_ENTRY + 1] * game.MAX_SIDE)
        self.here = row * SIDE + column
        top, left = row - game.REACH, column - game.REACH
        window = slice(top, top + game.VIEW), slice(left, left + game.VIEW)
        self._before = window, [cells[..., *window].copy() for cells in self._maps]
        self._seen[:, window[0], window[1]] = planes
        self._open[window] = planes[game.WALL_PLANE] == 0
        self._known[window] = True
        self._seen_on[window] = self.turn
        seen_open = _bits(self._open)
        if seen_open != self._seen_open:
            # It stays in one part: what can be reached changes only with what was seen.
            self._seen_open, self.free = seen_open, union(waves(1 << self.here, seen_open))
        self.others = 0
        for r, c in np.argwhere(planes[game.COG_PLANE]).tolist():
            self.others |= 1 << (top + r) * SIDE + left + c
        self.deposits = [_bits(self._seen[game.ORE_PLANE + kind]) & self.free for kind in KINDS]
        self.ever_deposits = [old | new for old, new in zip(self.ever_deposits, self.deposits, strict=True)]
        self.chargers = _bits(self._seen[game.CHARGER_PLANE]) & self.free
        self.forges = _bits(self._seen[game.FORGE_PLANE]) & self.free

    def frontier(self) -> int:
        """Return the free cells beside those that were never seen."""
        return spread(ALL_CELLS ^ _bits(self._known)) & self.free

    def units(self, kind: int, cell: int) -> int:
        """Return how much ore a deposit had when it was last seen."""
        return int(self._units[game.ORE_PLANE + kind, cell]) // game.ORE_SHADE

    def age(self, cell: int) -> int:
        """Return for how many turns a cell was not seen."""
        return self.turn - int(self._seen_on[cell // SIDE, cell % SIDE])

    def lacking(self) -> list[int]:
        """Return the kinds of ore of which there is too little for a heart."""
        return [kind for kind in KINDS if self.ores[kind] < game.RECIPE[kind]]

    def places_to_look(self, kinds: list[int]) -> int:
        """Return where something new may be: what was never seen, or else depleted deposits out of sight."""
        if frontier := self.frontier():
            return frontier
        places = union(self.ever_deposits[kind] for kind in kinds)
        return sum(1 << cell for cell in cells_in(places) if self.age(cell) > game.VIEW)


class Pilot:
    """Brings a cog to where it wants to be, around others, and out of jams.

    Who was in the way of others for some turns walks off to any cell nearby, and only then goes on: in a corridor, one
    of two that meet has to go back as far as to the next branch.
    """

    PATIENCE = 3
    DETOUR = 8
    """Cells more than without the others that are walked at once; for more, it first waits whether they move on."""

    RETREAT = 7

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._expected = 0
        self._blocked = 0
        self._refuge = 0
        self._retreat_turns = 0

    def snapshot(self) -> dict[str, Any]:
        """Return what it is now, beside its generator."""
        return dict(vars(self))

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Become what it was at a snapshot."""
        vars(self).update(snapshot)

    def go(self, memory: Memory, goals: int) -> int:
        """Return the action that brings the cog nearer to the nearest of `goals`."""
        here, empty = memory.here, memory.free & ~memory.others
        if self._expected:
            self._blocked = self._blocked + 1 if here != self._expected else 0
            self._expected = 0
        if self._blocked > self.PATIENCE:
            self._blocked, self._retreat_turns = 0, 1 + int(self._rng.integers(self.RETREAT))
            self._refuge = self._cell_nearby(here, empty)
        if self._retreat_turns:
            self._retreat_turns -= 1
            _, steps = first_steps(here, self._refuge, empty)
            if steps:
                return self._step(here, steps)
            self._retreat_turns = 0
        around, steps = first_steps(here, goals & empty, empty)
        through, straight = first_steps(here, goals, memory.free)
        if around <= through + self.DETOUR or (self._blocked == self.PATIENCE and steps):
            return self._step(here, steps)
        if straight & empty and through > 2:
            return self._step(here, straight & empty)
        # Others stand where it wants to go. Waiting lets them leave, stepping aside lets them out.
        self._blocked += 1
        return self._aside(memory) if self._rng.random() < 0.4 else game.WAIT

    def _cell_nearby(self, here: int, empty: int) -> int:
        cells = cells_in(union(islice(waves(1 << here, empty), self.RETREAT + 1)))
        return 1 << cells[int(self._rng.integers(len(cells)))]

    def wander(self, memory: Memory) -> int:
        """Return a step to any free cell."""
        self._blocked = 0
        return self._aside(memory)

    def _aside(self, memory: Memory) -> int:
        action = self._step(memory.here, spread(1 << memory.here) & memory.free & ~memory.others)
        self._expected = 0
        return action

    def stay(self, action: int) -> int:
        """Return an action that is done where the cog stands."""
        self._expected = self._blocked = self._retreat_turns = 0
        return action

    def _step(self, here: int, steps: int) -> int:
        choices = cells_in(steps)
        if not choices:
            return game.WAIT
        self._expected = choices[0] if len(choices) == 1 else choices[int(self._rng.integers(len(choices)))]
        return _DIRECTIONS[self._expected - here]
