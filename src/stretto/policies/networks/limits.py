"""Which numbers settings take: types that say it, for whoever checks a configuration."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le

Whole = Annotated[int, Ge(1)]
"""How many of something there are."""

NotNegative = Annotated[int, Ge(0)]
"""How many of something there are, perhaps none."""

Share = Annotated[float, Ge(0.0), Le(1.0)]
"""A part of a whole."""

PositiveShare = Annotated[float, Gt(0.0), Le(1.0)]
Positive = Annotated[float, Gt(0.0)]
AtLeastZero = Annotated[float, Ge(0.0)]
