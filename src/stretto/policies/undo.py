"""Undo: what an agent is before it chooses, so that it can choose again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.errors import UsageError
from stretto.seeding.generator_memory import generator_memory
from stretto.spaces import leaves

__calls_user_code__ = True


def why_not_again(agent_policy: Any) -> str:
    """Say why an agent that follows a policy cannot choose again; nothing if it can."""
    chooser = getattr(agent_policy, "chooser", agent_policy)
    if getattr(chooser, "stateless", False):
        return ""
    missing = [name for name in ("snapshot", "restore") if not callable(getattr(chooser, name, None))]
    if not missing:
        return ""
    return f"its {type(chooser).__name__} is not stateless and has no {' and no '.join(missing)}"


class Undo:
    """Keeps what an agent is, and brings it back: its policy, the generator of that, and those of its action space."""

    def __init__(self, agent_policy: Any, rng: np.random.Generator | None, space: spaces.Space[Any] | None) -> None:
        chooser = getattr(agent_policy, "chooser", agent_policy)
        self._snapshot: Callable[[], Any] | None = None
        if not getattr(chooser, "stateless", False):
            if reason := why_not_again(agent_policy):
                raise UsageError(f"an agent can choose again only if its policy can be restored, and {reason}")
            self._snapshot, self._restore = chooser.snapshot, chooser.restore
        generators: list[Any] = [] if rng is None else [rng]
        generators += [] if space is None else _generators(space)
        self._memories = [generator_memory(one.bit_generator) for one in generators]
        self._kept: tuple[Any, Sequence[Any]] | None = None

    def keep(self) -> None:
        """Keep what the agent is now."""
        state = None if self._snapshot is None else self._snapshot()
        self._kept = state, [read() for read, _ in self._memories]

    def take_back(self) -> None:
        """Let the agent be what it was when that was kept."""
        assert self._kept is not None, "nothing was kept"
        state, before = self._kept
        if self._snapshot is not None:
            self._restore(state)
        for (_, write), kept in zip(self._memories, before, strict=True):
            write(kept)


def _generators(space: spaces.Space[Any]) -> list[np.random.Generator]:
    """Return the generators that a space has by now."""
    found = [getattr(leaf.space, "_np_random", None) for leaf in leaves(space)]
    return [one for one in found if one is not None]
