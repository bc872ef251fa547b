"""LocalWorlds: worlds by slot in this process, played by agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from stretto.core import Action, AgentId, AgentWorld, NextEpisode, Outcome, WorldSpec, WorldStatistics
from stretto.seeding import PrivateGenerators, SeedTree

__calls_user_code__ = True

T = TypeVar("T")


class LocalWorlds:
    """Worlds that `make(slot)` makes when they are first needed.

    Each has private copies of the global generators that are named in `draws`; with `draws=None` all of them are
    watched, and `drawn` says which it has drawn from. What a world raises is its result: nobody else's step fails.
    """

    def __init__(self, make: Callable[[int], AgentWorld], count: int, draws: Iterable[str] | None = ()) -> None:
        self.count, self._make, self._draws = count, make, draws
        self.at: int | None = None  # the slot whose world is called now
        self._worlds: dict[int, AgentWorld] = {}
        self._guards: dict[int, PrivateGenerators] = {}

    @property
    def spec(self) -> WorldSpec:
        return self.world(0).spec()

    def world(self, slot: int) -> AgentWorld:
        """Return the world of a slot."""
        if slot not in self._worlds:
            self._worlds[slot] = self._make(slot)
        return self._worlds[slot]

    @property
    def drawn(self) -> frozenset[str]:
        """The global generators that worlds have drawn from, or may have."""
        return frozenset().union(*(guard.drawn for guard in self._guards.values()))

    def reset(self, episodes: Mapping[int, NextEpisode]) -> dict[int, Outcome | BaseException]:
        outcomes = {slot: self._reset(slot, episode) for slot, episode in episodes.items()}
        self.at = None
        return outcomes

    def _reset(self, slot: int, episode: NextEpisode) -> Outcome | BaseException:
        options = None if episode.options is None else dict(episode.options)
        self.at = slot
        try:
            reset = self.world(slot).reset
            if self._draws is not None and not self._draws:
                return reset(episode.seed, options)
            tree, probation = SeedTree(episode.seed or 0).child("world"), 1 << 62 if self._draws is None else 0
            self._guards[slot] = guard = PrivateGenerators(tree, probation, self._draws or ())
            return guard.run_repeatable(reset, episode.seed, options)
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a world raises is its result
            return error

    def step(self, actions: Mapping[int, Mapping[AgentId, Action]]) -> dict[int, Outcome | BaseException]:
        guards: dict[int, PrivateGenerators] = self._guards
        outcomes: dict[int, Outcome | BaseException] = {}
        for slot, by_agent in actions.items():
            self.at, step = slot, self._worlds[slot].step
            try:
                outcomes[slot] = guards[slot].run(step, by_agent) if slot in guards else step(by_agent)
            except (Exception, SystemExit) as error:  # noqa: BLE001  the same
                outcomes[slot] = error
        self.at = None
        return outcomes

    def alone(self, slot: int) -> Callable[[Mapping[AgentId, Action]], Outcome] | None:
        """Return what steps the world of a slot until its next reset, if there is no other slot."""
        if self.count > 1:
            return None
        step = self._worlds[slot].step
        return partial(self._guards[slot].run, step) if slot in self._guards else step

    def statistics(self, slot: int) -> WorldStatistics:
        return self._guarded(slot, self._worlds[slot].statistics)

    def save_replay(self, slot: int, path: str) -> str | None:
        """Let a slot's world write its episode to a file of its own kind; return which, if it does that."""
        return self._guarded(slot, lambda: self._worlds[slot].save_replay(path))

    def render(self, slot: int) -> Any:
        return self._guarded(slot, self._worlds[slot].render)

    def _guarded(self, slot: int, function: Callable[[], T]) -> T:
        self.at = slot
        try:
            return self._guards[slot].run(function) if slot in self._guards else function()
        finally:
            self.at = None

    def close(self) -> None:
        while self._worlds:
            # Nobody needs it any more, and what it raises here must not hide why it is let go.
            with suppress(Exception, SystemExit):
                self._worlds.popitem()[1].close()
