"""Foundry as one can look at it: an image, or text."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.games.foundry_maps import ORES, Cell, FoundryMap

CELL_PIXELS = 12
Image = NDArray[np.uint8]
Colour = tuple[int, int, int]

_FLOOR: Colour = (34, 36, 42)
_WALL: Colour = (92, 96, 108)
_CHARGER: Colour = (250, 214, 60)
_FORGE: Colour = (226, 84, 60)
_GAUGE: Colour = (12, 12, 14)
_ORE_COLOURS: tuple[Colour, ...] = ((214, 124, 58), (150, 170, 196), (186, 120, 220))
_COG_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghjklmnoprstuvwxyz!$%&@"
"""One for each of 64 cogs, without those that stand for ores."""


@dataclass(frozen=True, slots=True)
class CogSight:
    """What is shown of a cog; energy as a share of the most that it can have."""

    cell: Cell
    energy: float
    ores: tuple[int, ...]
    hearts: int


@dataclass(frozen=True, slots=True)
class Scene:
    """What is shown of the world: the map, the share that is left in each deposit, and the cogs."""

    map: FoundryMap
    left: dict[Cell, float]
    cogs: list[CogSight]
    cargo: int
    step: int


def draw_image(scene: Scene) -> Image:
    """Return the world in RGB, 12 pixels a cell.

    Deposits are squares that fade as they deplete, chargers yellow crosses, forges red rings. A cog is a disc in a
    colour of its own, with its energy as a green bar above and a bar below for each ore that it carries.
    """
    tall = np.where(scene.map.walls[:, :, None], np.array(_WALL, np.uint8), np.array(_FLOOR, np.uint8))
    image: Image = tall.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
    for cell, kind in scene.map.ore_at.items():
        square, share = _tile(image, cell)[2:-2, 2:-2], scene.left[cell]
        square[...] = _blend(_ORE_COLOURS[kind], 0.25 + 0.75 * share if share else 0.1)
    for cell in scene.map.chargers:
        tile = _tile(image, cell)
        tile[5:7, 2:-2] = tile[2:-2, 5:7] = _CHARGER
    for cell in scene.map.forges:
        tile = _tile(image, cell)
        tile[1:-1, 1:-1] = _FORGE
        tile[3:-3, 3:-3] = _FLOOR
    disc = _disc()
    for number, cog in enumerate(scene.cogs):
        tile = _tile(image, cog.cell)
        tile[disc] = _cog_colour(number)
        tile[0, :] = _GAUGE
        tile[0, : round(cog.energy * CELL_PIXELS)] = (80, 220, 100) if cog.energy > 0.25 else (240, 70, 60)
        for kind, units in enumerate(cog.ores):
            # From the left, one column a unit; three kinds in three rows.
            row = CELL_PIXELS - len(ORES) + kind
            tile[row, : units * CELL_PIXELS // scene.cargo] = _ORE_COLOURS[kind]
    return image


def draw_text(scene: Scene) -> str:
    """Return the world as lines: `#` walls, letters for ores (`c`, `i`, `q`), `+` chargers, `*` forges, and cogs.

    Below it, a line for each cog with its energy, cargo and hearts.
    """
    height, width = scene.map.walls.shape
    rows = [["#" if scene.map.walls[row, column] else "." for column in range(width)] for row in range(height)]
    for (row, column), kind in scene.map.ore_at.items():
        rows[row][column] = ORES[kind][0] if scene.left[row, column] else ","
    for sign, cells in (("+", scene.map.chargers), ("*", scene.map.forges)):
        for row, column in cells:
            rows[row][column] = sign
    for number, cog in enumerate(scene.cogs):
        rows[cog.cell[0]][cog.cell[1]] = _COG_LETTERS[number]
    lines = ["".join(row) for row in rows]
    lines.append(f"turn {scene.step}, hearts {sum(cog.hearts for cog in scene.cogs)}")
    for number, cog in enumerate(scene.cogs):
        cargo = ", ".join(f"{units} {ore}" for ore, units in zip(ORES, cog.ores, strict=True))
        lines.append(f"{_COG_LETTERS[number]}: energy {cog.energy:.0%}, {cargo}, hearts {cog.hearts}")
    return "\n".join(lines)


def _tile(image: Image, cell: Cell) -> Image:
    top, left = cell[0] * CELL_PIXELS, cell[1] * CELL_PIXELS
    return image[top : top + CELL_PIXELS, left : left + CELL_PIXELS]


def _blend(colour: Colour, share: float) -> list[int]:
    return [round(share * part + (1 - share) * floor) for part, floor in zip(colour, _FLOOR, strict=True)]


def _disc() -> NDArray[np.bool_]:
    rows, columns = np.ogrid[:CELL_PIXELS, :CELL_PIXELS]
    middle = (CELL_PIXELS - 1) / 2
    near: NDArray[np.bool_] = (rows - middle) ** 2 + (columns - middle) ** 2 <= 4.3**2
    return near


def _cog_colour(number: int) -> Colour:
    # Steps of the golden ratio keep neighbours in number apart in hue.
    red, green, blue = colorsys.hsv_to_rgb(number * 0.618 % 1.0, 0.55 + 0.4 * (number % 2), 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)
