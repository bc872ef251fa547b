"""Group: the worlds of one worker, and what any group of them can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from stretto.core import NextEpisode
from stretto.envs.arrays import Rows
from stretto.envs.messages import Built, Extras, ResetSlot, SlotPlan
from stretto.errors import Place
from stretto.spaces import SpaceLayout


class Group(Protocol):
    """Worlds by slot that are reset and stepped in one worker; results go into the rows that they are given.

    `everyone` are the indices of all of them, from 0 on; their slots are those from `first` on. `units` are the indices
    of those that can only be reset and stepped together. `ended` says whether an episode may have ended in the last step.
    """

    first: int
    count: int
    everyone: range
    units: Sequence[range]
    ended: bool
    layout: SpaceLayout
    action_layout: SpaceLayout
    refuse: Callable[[Any], None] | None
    """Raises because of the shape of what the world observed that the group is at; `None`: the group sees to shapes."""

    def build(self) -> None:
        """Make the worlds. Apart from the constructor, so that `place` can say which one fails."""

    def describe(self) -> Built:
        """Say what the worlds have in common."""

    def classes(self) -> set[type]:
        """Return the classes of the worlds, and of what is wrapped around them."""

    def show_starts(self, starts: memoryview[int]) -> None:
        """From now on write here what `position[1]` was when the episode of each world began."""

    def place(self) -> Place:
        """Say what the group is at."""

    def turn_to(self, slot: int) -> Place:
        """Be at another slot, of which something is to be said, and say where that is."""

    def reset(self, resets: Sequence[ResetSlot], rows: Rows) -> Extras:
        """Reset some slots and write their rows."""

    def step(self, indices: Sequence[int], actions: Any, rows: Rows) -> Extras | None:
        """Step some worlds and write their rows; `None` where there is nothing else to tell."""

    def tell_next(self, i: int, episode: NextEpisode) -> None:
        """Let a slot's next automatic reset be as told."""

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], indices: Sequence[int]) -> list[Any]:
        """Call a method of some worlds, or read an attribute."""

    def set_attr(self, name: str, i: int, value: Any) -> None:
        """Set an attribute of one world."""

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """Run a function beside every world."""

    def record(self, on: bool) -> None:
        """Keep points to restore slots from, or not."""

    def record_soon(self) -> None:
        """Let the next episode of every world be a point to restore its slot from."""

    def rebuild(self, unit: range) -> None:
        """Replace worlds by new ones, as if nothing had happened to them yet."""

    def give_up(self, unit: range, plans: Sequence[SlotPlan], reason: str | None) -> None:
        """Let episodes that cannot be restored end with the next step; without a reason they were over anyway."""

    def close(self, unit: range) -> None:
        """Close some worlds."""
