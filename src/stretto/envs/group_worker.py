"""GroupService: a group behind a worker's port; the only code that knows both arrays and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from stretto.core import NextEpisode
from stretto.envs import messages
from stretto.envs.arrays import BUFFERS, Buffers, InfoBuffer, Rows, array_shapes, handing_over
from stretto.envs.batched_group import BatchedGroup, BlockMaker
from stretto.envs.checks import BlamingMail, parts_of, unpicklable
from stretto.envs.group import EnvGroup
from stretto.envs.infos import Table
from stretto.envs.messages import Attach, Built, Extras, ResetSlot, Restored, SlotPlan
from stretto.envs.slot import GroupSettings, Maker
from stretto.errors import InvalidOutput, Place
from stretto.spaces import SpaceLayout
from stretto.workers.base import Port, Start


class Group(Protocol):
    """Worlds by slot that are reset and stepped together; results go into the rows that they are given.

    `everyone` are the indices of all of them, from 0 on; their slots are those from `first` on.
    """

    first: int
    count: int
    everyone: range
    layout: SpaceLayout
    action_layout: SpaceLayout

    def build(self) -> None:
        """Make the worlds; `place` can tell which one fails."""

    def describe(self) -> Built:
        """Say what the worlds have in common."""

    def place(self) -> Place:
        """Say what the group is at."""

    def turn_to(self, slot: int) -> Place:
        """Be at another slot, of which something is to be said, and say where that is."""

    def reset(self, plans: Iterable[ResetSlot], rows: Rows) -> Extras:
        """Reset some slots and write their rows."""

    def step(self, indices: Sequence[int], actions: Any, rows: Rows) -> Extras | None:
        """Step some worlds and write their rows; `None` where there is nothing else to tell."""

    def tell_next(self, i: int, episode: NextEpisode) -> None:
        """Let a slot's next automatic reset be as told."""

    def refuse(self, observation: Any) -> None:
        """Raise because the world that the group is at observed nothing, or a part of it is `None`."""

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], indices: Iterable[int]) -> list[Any]:
        """Call a method of some worlds, or read an attribute."""

    def set_attr(self, name: str, i: int, value: Any) -> None:
        """Set an attribute of one world."""

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """Run a function beside every world."""

    def restore(self, plans: list[SlotPlan], beat: Callable[[], None]) -> Restored:
        """Bring slots to where others were; `beat` is called with every step, as a sign of life."""

    def close(self) -> None:
        """Close every world, even if one fails to; then raise what the first one raised."""


@dataclass(frozen=True, slots=True)
class GroupFactory:
    """Builds a group inside a worker."""

    makers: Sequence[Maker]
    first: int
    settings: GroupSettings

    @property
    def slots(self) -> range:
        """The slots that it makes worlds for."""
        return range(self.first, self.first + len(self.makers))

    def __call__(self, port: Port) -> GroupService:
        return GroupService(port, EnvGroup(self.makers, self.first, self.settings, port.index, port.position))


@dataclass(frozen=True, slots=True)
class BatchedFactory:
    """Builds a group of worlds that are batched already inside a worker: blocks of so many worlds each."""

    maker: BlockMaker
    sizes: Sequence[int]
    first: int
    settings: GroupSettings

    @property
    def slots(self) -> range:
        """The slots that it makes worlds for."""
        return range(self.first, self.first + sum(self.sizes))

    def __call__(self, port: Port) -> GroupService:
        where = self.settings, port.index, port.position
        return GroupService(port, BatchedGroup(self.maker, self.sizes, self.first, *where))


class Worlds(Protocol):
    """All worlds of a vector environment, and how they are spread over workers: `count` pieces, each called a `noun`."""

    noun: str
    told: str
    count: int
    sample: Callable[[], Any]

    def shares(self, workers: int, relief: int) -> Sequence[GroupFactory | BatchedFactory]:
        """Split the pieces evenly; the last worker, which may be the caller, has `relief` fewer than the others."""


class Singles:
    """Worlds one by one."""

    noun, told = "environment", ""

    def __init__(self, makers: Sequence[Maker], settings: GroupSettings) -> None:
        self.count, self.sample = len(makers), makers[0]
        self._makers, self._settings = makers, settings

    def shares(self, workers: int, relief: int) -> list[GroupFactory]:
        spans = _spans(self.count, workers, relief)
        return [GroupFactory(list(self._makers[span]), span.start, self._settings) for span in spans]


class Blocks:
    """Worlds that are batched already, in blocks of so many."""

    noun = "block"

    def __init__(self, maker: BlockMaker, sizes: Sequence[int], settings: GroupSettings) -> None:
        self.maker, self.count = maker, len(sizes)
        self.sample: Callable[[], Any] = partial(maker, sizes[0])
        self.told = f"vectorized, in {len(sizes)} block{'s' if len(sizes) > 1 else ''}: "
        self._sizes, self._settings = sizes, settings

    def shares(self, workers: int, relief: int) -> list[BatchedFactory]:
        spans = _spans(self.count, workers, 0)
        firsts = [sum(self._sizes[: span.start]) for span in spans]
        return [
            BatchedFactory(self.maker, self._sizes[span], first, self._settings)
            for span, first in zip(spans, firsts, strict=True)
        ]


def _spans(count: int, workers: int, relief: int) -> list[slice]:
    least, more = divmod(count + relief, workers)
    sizes = [least + (index < more) for index in range(workers)]
    sizes[-1] -= relief
    return [slice(sum(sizes[:index]), sum(sizes[: index + 1])) for index in range(workers)]


class GroupService:
    """Answers for a group of worlds."""

    def __init__(self, port: Port, group: Group) -> None:
        self._port, self._group = port, group
        port.place = self._group.place
        if port.pickles:
            port.mail = BlamingMail(port.mail, self._blame)
        self._asked: Sequence[int] = ()
        self._group.build()
        self._observations, self._actions = self._group.layout, self._group.action_layout
        self._scalar_actions = not self._actions.loose and [
            (leaf.path, leaf.shape) for leaf in self._actions.fixed
        ] == [((), ())]
        self._rows: list[Rows] = []
        self._buffers: Buffers | None = None
        self._info_buffer: InfoBuffer | None = None
        self._shared = True
        self._loose: list[list[Any]] = [[None] * group.count for _ in self._observations.loose]
        self._changed: list[tuple[int, int, Any]] = []

    def close(self) -> None:
        self._group.close()

    def handle(self, message: Any) -> object:
        group = self._group
        match message:
            case messages.Step(slots, actions, buffer):
                indices = group.everyone if slots is None else [slot - group.first for slot in slots]
                return self._told(group.step(indices, actions, self._rows[buffer]), buffer, indices)
            case messages.Reset(slots, buffer):
                indices = [how.slot - group.first for how in slots]
                return self._told(group.reset(slots, self._rows[buffer]), buffer, indices)
            case messages.Call(name, args, kwargs, slots):
                self._asked = [i for i in group.everyone if slots is None or group.first + i in slots]
                return group.call(name, args, kwargs, self._asked)
            case messages.SetAttr(name, values):
                for slot, value in values.items():
                    group.set_attr(name, slot - group.first, value)
                return None
            case messages.MapWorlds(function):
                self._asked = group.everyone
                return group.map(function)
            case messages.TellNext(episodes):
                for slot, episode in episodes.items():
                    group.tell_next(slot - group.first, episode)
                return None
            case messages.Restore(plans):
                return self._restore(plans)
            case Attach():
                self._attach(message)
                return None
            case messages.Describe():
                return group.describe()
            case Start():
                return None
            case _:
                raise AssertionError(f"no such message: {message!r}")

    def signal(self, code: int) -> object:
        buffer = code & 1
        group = self._group
        assert self._buffers is not None
        if code < BUFFERS:
            actions = self._take_actions(slice(None))
            extras = group.step(group.everyone, actions, self._rows[buffer])
            if extras is not None and self._info_buffer is not None:
                extras = self._lay_down(extras, self._info_buffer)
        else:
            i = (code >> 1) - 1
            extras = group.step([i], self._take_actions(slice(i, i + 1)), self._rows[buffer])
        if self._changed:
            extras = extras or Extras()
            extras.objects, self._changed = self._changed, []
        return extras

    def _lay_down(self, extras: Extras, buffer: InfoBuffer) -> Extras | None:
        """Lay infos into shared memory if they fit; return what is left to be sent."""
        if isinstance(extras.infos, Table):
            laid = buffer.put(extras.infos, self._port.learned)
            if isinstance(laid, int):
                self._port.note(laid)
                extras.infos = None
            else:
                extras.infos = laid
        return extras if extras.infos is not None or extras.origins else None

    def _blame(self, answer: object, error: Exception) -> None:
        """Find out which slot's part of an answer cannot be sent, and be at that slot."""
        if isinstance(answer, Extras):
            for slot, name, value in parts_of(answer, self._observations):
                found = unpicklable(name, value)
                if found is not None:
                    part, why = found
                    place = self._group.turn_to(slot)
                    raise InvalidOutput(
                        f"what a world returns must be picklable where it runs in another process, and {part} of slot {slot} "
                        f"is not: {type(why).__name__}: {why}; leave it out, or use backend='serial' or 'thread' ({place})",
                        place,
                    ) from error
        elif isinstance(answer, list):
            for i, value in zip(self._asked, answer, strict=False):
                if unpicklable("", value) is not None:
                    self._group.turn_to(self._group.first + i)
                    return

    def _take_actions(self, rows: slice) -> Any:
        assert self._buffers is not None
        if self._scalar_actions:
            return self._buffers.actions[0][rows]
        # A copy: worlds may keep their action, and the caller writes the next ones into these arrays.
        arrays = [array[rows].copy() for array in self._buffers.actions]
        if len(arrays) == 1 and not self._actions.fixed[0].path:
            return arrays[0]
        return [self._actions.row(arrays, (), i) for i in range(len(arrays[0]))]

    def _told(self, extras: Extras | None, buffer: int, indices: Sequence[int]) -> Extras:
        """Add what does not lie in shared memory."""
        extras = extras or Extras()
        extras.objects, self._changed = self._changed, []
        if not self._shared:
            assert self._buffers is not None
            b = self._buffers
            rows = [*b.observations[buffer], b.rewards[buffer], b.terminated[buffer], b.truncated[buffer]]
            extras.arrays = [array[list(indices)] for array in rows]
        return extras

    def _attach(self, message: Attach) -> None:
        group, leaves = self._group, len(self._observations.fixed)
        if message.fields is None:
            self._shared = False
            shapes = array_shapes(self._observations, self._actions, group.count)
            self._buffers = Buffers.of([np.zeros(shape, dtype) for shape, dtype in shapes], leaves)
        else:
            arrays = self._port.arena.view(message.fields)
            self._buffers = message.buffers or Buffers.of(arrays, leaves).part(group.first, group.count)
            if self._port.pickles and self._buffers.info_room is not None:
                self._info_buffer = InfoBuffer(group.first, self._buffers.info_room)
        b = self._buffers
        self._rows = [
            Rows.of(
                self._observations.target(b.observations[k], self._put_loose, group.refuse),
                b.rewards[k],
                b.terminated[k],
                b.truncated[k],
            )
            for k in range(BUFFERS)
        ]
        if message.buffers is not None and not self._observations.loose:
            for k, rows in enumerate(self._rows):
                rows.hand_over = handing_over(message.buffers, k, self._observations)

    def _put_loose(self, leaf: int, i: int, value: Any) -> None:
        # Texts seldom change within an episode, and most steps then need no mail at all.
        last = self._loose[leaf][i]
        if type(value) is str and last == value:
            return
        self._loose[leaf][i] = value
        self._changed.append((leaf, self._group.first + i, value))

    def _restore(self, plans: list[messages.SlotPlan]) -> messages.Restored:
        self._port.muted = True
        try:
            return self._group.restore(plans, self._port.beat)
        finally:
            self._port.muted = False
