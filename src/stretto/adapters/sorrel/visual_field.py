"""What an agent sees of Sorrel's grid: the same bits as its own `visual_field`, without a look at the rest of the grid."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MODULE = "sorrel.observation.observation_spec"

_its_own: Any = None


def see_faster() -> None:
    """Let Sorrel's observations look at what is in sight alone, in this process, from now on; may be called twice.

    Sorrel encodes the whole grid for every agent and then cuts a window out of it. That is most of the time of a turn.
    """
    global _its_own
    module: Any = sys.modules[_MODULE]
    if module.visual_field is not visual_field:
        _its_own, module.visual_field = module.visual_field, visual_field


def visual_field(
    world: Any,
    entity_map: Mapping[str, Any],
    vision: int | None = None,
    location: Any = None,
    fill_entity_kind: str = "Wall",
) -> NDArray[np.float64]:
    """Return what Sorrel's function of this name returns; it is asked itself for whole grids and windows beyond them."""
    grid = world.map
    if location is None or vision is None or not _fits(grid.shape, vision):
        found: NDArray[np.float64] = _its_own(world, entity_map, vision, location, fill_entity_kind)
        return found
    height, width, layers = grid.shape
    top, left, side = location[0] - vision, location[1] - vision, 2 * vision + 1
    above, before = max(0, -top), max(0, -left)
    below, behind = min(side, height - top), min(side, width - left)
    inside = grid[top + above : top + below, left + before : left + behind]
    looks = np.array([entity_map[entity.kind] for entity in inside.flat], np.float64)
    channels = looks.shape[-1]
    looks = looks.reshape(*inside.shape[:2], layers, channels)
    seen: NDArray[np.float64] = np.empty((channels, side, side))
    if inside.shape[:2] != (side, side):
        seen[:] = np.asarray(entity_map[fill_entity_kind], np.float64)[:, None, None]
    into = seen[:, above:below, before:behind]
    # Layer by layer, in the order in which numpy adds up so few numbers.
    np.copyto(into, looks[:, :, 0].transpose(2, 0, 1))
    for layer in range(1, layers):
        into += looks[:, :, layer].transpose(2, 0, 1)
    return seen


def _fits(shape: tuple[int, ...], vision: int) -> bool:
    """Whether a window is no larger than the grid on either side of its middle, where Sorrel puts it to cut it out."""
    return len(shape) == 3 and all(side // 2 >= vision and side // 2 + vision < side for side in shape[:2])
