"""What a vector environment and the groups of its workers say to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from stretto.core import NextEpisode
from stretto.envs.infos import Infos
from stretto.workers.arena import Field
from stretto.workers.mail import Sent


@dataclass(frozen=True, slots=True)
class Describe:
    """Ask what the worlds are like; answered with `Built`."""


@dataclass(frozen=True, slots=True)
class RecordSoon:
    """Ask that the next episode of every world be a point to restore its slot from."""


@dataclass(frozen=True, slots=True)
class Built:
    """A group's worlds exist: what they have in common, and the agents where there are several.

    `others` are the spaces of those slots whose spaces are not those of the group's first: of its observations and of its
    actions. Worlds that are batched already lie in so many `blocks`, and can only be reset and stepped together. Where the
    space of a batch is no matter of course, `observation_batch` is that space. Building them took `seconds`.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    spec: EnvSpec | None
    agents: Any = None
    blocks: int = 0
    others: Mapping[int, tuple[spaces.Space[Any], spaces.Space[Any]]] = field(default_factory=dict)
    observation_batch: spaces.Space[Any] | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Attach:
    """Where the arrays lie in the arena; `fields` is `None` where they travel as messages.

    `buffers` are the arrays of a caller who steps all worlds itself.
    """

    fields: list[Field] | None
    buffers: Any = None


@dataclass(slots=True)  # not frozen: that would take 0.6 µs more, for every episode
class ResetSlot:
    """How to reset one slot.

    `next` is what the automatic reset after it is told. `entropy` seeds the private generators where no seed was ever
    given. `generator` is the state of the world's own `np_random` to begin with, `globals` that of its private
    generators: both only when an episode is restored.
    """

    slot: int
    seed: int | None
    options: dict[str, Any] | None
    episode: int = 0
    slot_seed: int | None = None
    entropy: int = 0
    next: NextEpisode | None = None
    generator: dict[str, Any] | None = None
    globals: dict[str, Any] | None = None
    restoring: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset slots and write their observations into `buffer`."""

    resets: list[ResetSlot]
    buffer: int


@dataclass(frozen=True, slots=True)
class Step:
    """Step these slots (`None`: all) with these actions; used where actions do not lie in shared memory."""

    slots: list[int] | None
    actions: Any
    buffer: int


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of every world, or of those of some slots (or read an attribute that is no method)."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    slots: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class SetAttr:
    """Set an attribute, in the worlds of the slots that have a value."""

    name: str
    values: dict[int, Any]

    def of(self, slots: Iterable[int]) -> SetAttr:
        """Return what this means for some slots."""
        return SetAttr(self.name, {slot: self.values[slot] for slot in slots if slot in self.values})


@dataclass(frozen=True, slots=True)
class MapWorlds:
    """Run `function(env)` beside each world."""

    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class LookAtGlobals:
    """Say which values globals have there, by the names of their modules and their own.

    Without names, say which classes the worlds are of.
    """

    names: list[tuple[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class TellNext:
    """What slots are to play when they begin their next episode."""

    episodes: dict[int, NextEpisode]


@dataclass(frozen=True, slots=True)
class Origin(Sent):
    """A point from which a slot can be restored: just before an episode's reset, asked for or automatic.

    `options` are those of an automatic reset; what a caller asks for it knows itself.
    """

    slot: int
    episode: int
    seed: int | None
    generator: dict[str, Any] | None
    globals: dict[str, Any] | None
    automatic: bool
    options: dict[str, Any] | None = None


@dataclass(slots=True)
class Extras(Sent):
    """What a reset or a step has to say beside its arrays.

    `objects`: (leaf number, slot, value) of leaves without a fixed size. `arrays`: everything, where nothing is shared.
    """

    infos: Infos = None
    objects: list[tuple[int, int, Any]] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    arrays: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one slot that follow each other: one array of actions a leaf, or a list where they have no fixed size."""

    actions: list[Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A way to restore a slot: what had changed its world before a reset, the reset, and what happened after it.

    That is, in order, `Steps`, a `ResetSlot`, a `NextEpisode`, a `Call`, or a `SetAttr` with one value.
    """

    before: list[Any]
    reset: ResetSlot
    after: list[Any]


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """How to bring one slot to where it was.

    `attempts` are ways to do so, the best first. `changes` are the calls and attributes that have changed its world.
    `expected` is the last row that the caller saw: observation, reward, terminated, truncated; `None`: nothing to
    compare with. If the slot cannot be restored, `lost_seed` seeds the next episode, unless `slot_seed` has a key for
    each or `next` says another. `reason` says why where that is known beforehand. The lost episode ends with the
    observation that is expected, unless it `is_over` already.
    """

    slot: int
    attempts: Sequence[Attempt]
    changes: list[Any]
    expected: tuple[Any, float, bool, bool] | None
    lost_seed: int
    lost_episode: int
    slot_seed: int | None
    next: NextEpisode | None
    is_over: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """Bring these slots to where they were."""

    plans: list[SlotPlan]


@dataclass(frozen=True, slots=True)
class Restored:
    """How that went: steps replayed, and the slots that could not be restored with the reason."""

    replayed: int
    lost: dict[int, str]


@dataclass(frozen=True, slots=True)
class Past:
    """What a slot has done: it was reset for an episode, with a seed; then came steps, and what it was told to play next.

    Of a step that only resets the world, the action does not count.
    """

    episode: NextEpisode
    events: Sequence[Steps | NextEpisode]
