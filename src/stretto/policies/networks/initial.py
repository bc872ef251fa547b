"""First weights of networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stretto.seeding.streams import SeedTree


def uniform(tree: SeedTree, rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Draw the weights of a layer, and its bias as a last row, evenly up to 1 / sqrt(rows)."""
    most = 1.0 / math.sqrt(rows)
    return tree.generator().uniform(-most, most, (rows + 1, columns)).astype(np.float32)


def orthogonal(tree: SeedTree, rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Draw a matrix whose shorter side is orthonormal."""
    tall = rows >= columns
    drawn = tree.generator().standard_normal((rows, columns) if tall else (columns, rows))
    q, r = np.linalg.qr(drawn)
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return (q if tall else q.T).astype(np.float32)
