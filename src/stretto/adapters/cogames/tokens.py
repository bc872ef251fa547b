"""What an agent of mettagrid sees, as policies of cogames know it: tokens, made only where somebody looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from mettagrid.config.id_map import ObservationFeatureSpec
from mettagrid.mettagrid_c import PackedCoordinate
from mettagrid.simulator.interface import AgentObservation, Location, ObservationToken, VisibleTalk

from stretto.spaces import Array

_TOKEN_BYTES = 3
_END = b"\xff"


class Token(ObservationToken):  # type: ignore[misc]  # mettagrid need not be installed where types are checked
    """One token; where it is was worked out once, for all who ever see it."""

    location: Location | None = None
    is_global: bool = False

    def __init__(self, feature: ObservationFeatureSpec, raw: bytes) -> None:
        super().__init__(feature, raw[2], (raw[0], raw[1], raw[2]))
        place = PackedCoordinate.unpack(raw[0])
        self.location = None if place is None else Location(*place)
        self.is_global = PackedCoordinate.is_global(raw[0])


class TokenTable(dict[bytes, Token]):
    """All tokens that were seen so far, by their three bytes. Few of them ever occur, so each is made once."""

    def __init__(self, features: Sequence[ObservationFeatureSpec]) -> None:
        super().__init__()
        self._features = {feature.id: feature for feature in features}

    def __missing__(self, raw: bytes) -> Token:
        token = self[raw] = Token(self._features[raw[1]], raw)
        return token

    def read(self, seen: Array) -> list[Token]:
        """Return the tokens in an array of mettagrid's: those before the first without a feature."""
        features = seen.tobytes()[1::_TOKEN_BYTES]
        count = features.find(_END)
        whole = np.ascontiguousarray(seen).view(f"V{_TOKEN_BYTES}")[:, 0]
        return list(map(self.__getitem__, (whole if count < 0 else whole[:count]).tolist()))


class LazyObservation(AgentObservation):  # type: ignore[misc]  # as above
    """An observation whose tokens are made when somebody looks at them: many policies never do."""

    def __init__(self, agent_id: int, seen: Array, table: TokenTable, talk: Sequence[VisibleTalk] = ()) -> None:
        self.agent_id, self.raw, self.talk, self._table = agent_id, seen, talk, table

    @cached_property
    def tokens(self) -> Any:
        """The tokens, as a list; annotated as in the class above."""
        return self._table.read(self.raw)
