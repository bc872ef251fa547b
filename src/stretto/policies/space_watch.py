"""SpaceWatch: nobody draws from a world's action spaces while a policy chooses for many agents at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.errors import UsageError
from stretto.spaces import leaves


class SpaceWatch:
    """Refuses draws from the spaces that it watches, as long as it is `on`.

    An agent that chooses alone may draw from its action space, which is seeded for it. The agents of one `step_batch` share
    these spaces with other episodes: what they drew would depend on where and with whom they are asked.
    """

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False

    def watch(self, space: spaces.Space[Any]) -> None:
        """Watch the generators that a space has now; another seed gives it new ones."""
        for leaf in leaves(space):
            part: Any = leaf.space
            part._np_random = _Watched(part.np_random.bit_generator, self)  # noqa: SLF001  there is no public way


class _Watched(np.random.Generator):
    """A generator that looks whether it may be used."""

    def __init__(self, bits: np.random.BitGenerator, watch: SpaceWatch) -> None:
        super().__init__(bits)
        self.watch = watch

    def __getattribute__(self, name: str) -> Any:
        if object.__getattribute__(self, "__dict__")["watch"].on:
            raise UsageError(
                "step_batch must not draw from world.action_spaces, which episodes share, so that results would depend on "
                "where it runs; draw from the rng of each agent policy"
            )
        return super().__getattribute__(name)
