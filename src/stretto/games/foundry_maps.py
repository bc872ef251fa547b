"""The maps of Foundry: a function of the layout, the numbers and a generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import UsageError

Cell = tuple[int, int]
Walls = NDArray[np.bool_]
Carver = Callable[[int, int, float, np.random.Generator], Walls]

ORES = ("copper", "iron", "quartz")

_NEIGHBOURS = ((-1, 0), (0, 1), (1, 0), (0, -1))
_ROOM = 6
"""Cells between two walls of the layout with rooms."""

_CANDIDATES = 8
"""Cells that are compared to find one far from the others of its kind."""


@dataclass(frozen=True, slots=True)
class FoundryMap:
    """Where everything is that does not move. `ore_at` tells the kind of ore of each deposit, as a place in `ORES`."""

    walls: Walls
    ore_at: dict[Cell, int]
    chargers: tuple[Cell, ...]
    forges: tuple[Cell, ...]

    @property
    def free_cells(self) -> list[Cell]:
        """All cells that a cog can stand on, from the top, row by row."""
        return [(int(row), int(column)) for row, column in np.argwhere(~self.walls)]


@dataclass(frozen=True, slots=True)
class Layout:
    """How walls are drawn, and the numbers that a map has unless others are given.

    Deposits, chargers and forges are counted for 256 cells, and grow with the size of the map.
    """

    carve: Carver
    deposits: float
    richness: int
    chargers: float
    forges: float
    obstacles: float
    renewal: float

    def count(self, name: str, height: int, width: int) -> int:
        """Return how many of `name` a map of this size has."""
        share: float = getattr(self, name)
        return max(1, round(share * height * width / 256))


def draw_map(
    layout: Layout,
    size: Cell,
    *,
    deposits: Sequence[int],
    stations: tuple[int, int],
    obstacles: float,
    generator: np.random.Generator,
) -> FoundryMap:
    """Draw a map with these numbers of deposits of each kind of ore, and of chargers and forges, all within reach."""
    walls = _connected(layout.carve(*size, obstacles, generator))
    chargers, forges = stations
    free = [(int(row), int(column)) for row, column in np.argwhere(~walls)]
    needed = sum(deposits) + chargers + forges
    if len(free) < needed:
        raise UsageError(
            f"a map must have a free cell for each deposit, charger and forge, got {len(free)} cells for {needed}; ask "
            f"for fewer of them, fewer obstacles or a larger map"
        )
    order = [free[index] for index in generator.permutation(len(free))]
    forge_cells = _apart(order, forges)
    charger_cells = _apart(order, chargers)
    ore_at = {order.pop(): kind for kind, count in enumerate(deposits) for _ in range(count)}
    return FoundryMap(walls, ore_at, charger_cells, forge_cells)


def _apart(order: list[Cell], count: int) -> tuple[Cell, ...]:
    """Take `count` cells from the end of `order` that are far from each other."""
    taken = [order.pop()]
    while len(taken) < count:
        candidates = order[-_CANDIDATES:]
        best = max(candidates, key=lambda cell: min(abs(cell[0] - r) + abs(cell[1] - c) for r, c in taken))
        order.remove(best)
        taken.append(best)
    return tuple(taken)


def _connected(walls: Walls) -> Walls:
    """Fill all free cells but those of the largest connected part, so that each can be reached from each."""
    height, width = walls.shape
    parts: list[list[Cell]] = []
    seen = walls.copy()
    for start in np.argwhere(~walls).tolist():
        if seen[start[0], start[1]]:
            continue
        part, waiting = [], [(start[0], start[1])]
        seen[start[0], start[1]] = True
        while waiting:
            row, column = waiting.pop()
            part.append((row, column))
            for down, right in _NEIGHBOURS:
                r, c = row + down, column + right
                if 0 <= r < height and 0 <= c < width and not seen[r, c]:
                    seen[r, c] = True
                    waiting.append((r, c))
        parts.append(part)
    kept = np.ones_like(walls)
    for row, column in max(parts, key=len, default=[]):
        kept[row, column] = False
    return kept


def _scattered(height: int, width: int, obstacles: float, generator: np.random.Generator) -> Walls:
    """Single blocks anywhere."""
    return generator.random((height, width)) < obstacles


def _maze(height: int, width: int, obstacles: float, generator: np.random.Generator) -> Walls:
    """Corridors one cell wide; of the walls that could be opened to make a loop, a share of `obstacles` stays."""
    walls = np.ones((height, width), bool)
    walls[0, 0] = False
    path = [(0, 0)]
    while path:
        row, column = path[-1]
        steps = [
            (down, right)
            for down, right in _NEIGHBOURS
            if 0 <= row + 2 * down < height
            and 0 <= column + 2 * right < width
            and walls[row + 2 * down, column + 2 * right]
        ]
        if not steps:
            path.pop()
            continue
        down, right = steps[int(generator.integers(len(steps)))]
        walls[row + down, column + right] = walls[row + 2 * down, column + 2 * right] = False
        path.append((row + 2 * down, column + 2 * right))
    opened = generator.random((height, width)) >= obstacles
    between = np.zeros((height, width), bool)
    between[0::2, 1 : width - 1 : 2] = True
    between[1 : height - 1 : 2, 0::2] = True
    return walls & ~(between & opened)


def _rooms(height: int, width: int, obstacles: float, generator: np.random.Generator) -> Walls:
    """Rooms in rows and columns, a door two cells wide between neighbours, and single blocks in them."""
    walls = generator.random((height, width)) < obstacles
    rows = list(range(_ROOM, height - 2, _ROOM + 1))
    columns = list(range(_ROOM, width - 2, _ROOM + 1))
    walls[rows, :] = True
    walls[:, columns] = True
    for row in rows:
        for left, right in zip([-1, *columns], [*columns, width], strict=True):
            door = int(generator.integers(left + 1, right - 1))
            walls[row - 1 : row + 2, door : door + 2] = False
    for column in columns:
        for top, bottom in zip([-1, *rows], [*rows, height], strict=True):
            door = int(generator.integers(top + 1, bottom - 1))
            walls[door : door + 2, column - 1 : column + 2] = False
    return walls


def _caves(height: int, width: int, obstacles: float, generator: np.random.Generator) -> Walls:
    """Noise that was smoothed: rounded halls with passages between them."""
    walls = generator.random((height, width)) < obstacles
    for _ in range(3):
        around: Any = np.pad(walls, 1, constant_values=True).astype(np.int8)
        count = sum(
            around[1 + down : 1 + down + height, 1 + right : 1 + right + width]
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
        )
        walls = np.asarray(count) >= 5
    return walls


LAYOUTS = {
    "open": Layout(_scattered, deposits=4, richness=12, chargers=3, forges=2, obstacles=0.08, renewal=0.2),
    "maze": Layout(_maze, deposits=4, richness=12, chargers=4, forges=2, obstacles=0.75, renewal=0.2),
    "scarce": Layout(_scattered, deposits=2, richness=8, chargers=1.5, forges=1, obstacles=0.15, renewal=0.5),
    "crowded": Layout(_rooms, deposits=6, richness=24, chargers=6, forges=4, obstacles=0.03, renewal=0.8),
    "large": Layout(_caves, deposits=2.5, richness=16, chargers=2, forges=1.5, obstacles=0.4, renewal=0.5),
}
