"""How worlds are spread over workers, and GroupService: a group behind a worker's port, which knows arrays and messages."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from stretto.envs import messages
from stretto.envs.arrays import (
    BUFFERS,
    MOST_BUFFERS,
    Buffers,
    InfoBuffer,
    Rows,
    StepAlone,
    as_actions,
    buffer_shapes,
    other_shapes,
    stepped_by,
)
from stretto.envs.batched_group import BatchedGroup, BlockMaker
from stretto.envs.group import Group
from stretto.envs.infos import BatchInfos, Table
from stretto.envs.messages import Attach, Extras
from stretto.envs.restoring.restorer import Restorer
from stretto.envs.single_group import EnvGroup
from stretto.envs.slot import GroupSettings, Maker
from stretto.errors import InvalidOutput
from stretto.identity.watched_globals import globals_here
from stretto.spaces import SpaceLayout
from stretto.workers.base import Port, Reply
from stretto.workers.mail import Mail, dump, unpicklable

BLOCK_ROWS, MOST_BLOCKS = 4_096, 8
"""How many worlds a block has at least where there are several, and how many blocks there are at most.

With fewer rows handing a block to another process takes longer than it saves (CartPole: 140 µs for 4,096 rows); with
more blocks, whoever has one core loses more to numpy's cost of a call than it may.
"""


@dataclass(frozen=True, slots=True)
class GroupFactory:
    """Builds a group for some slots inside a worker: `group(pieces, first slot, settings, worker, position)`."""

    group: Callable[..., Group]
    pieces: Sequence[Any]
    slots: range
    settings: GroupSettings
    pickled: list[bytes] = field(default_factory=list, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker that has to be replaced gets what it got at first: functions travel with their globals, which may have
        # changed since.
        if not self.pickled:
            self.pickled.append(dump((self.group, self.pieces, self.slots, self.settings), by_value=True))
        return _unpickled, (self.pickled[0],)

    def __call__(self, port: Port) -> GroupService:
        return GroupService(port, self.group(self.pieces, self.slots.start, self.settings, port.index, port.position))


def _unpickled(data: bytes) -> GroupFactory:
    return GroupFactory(*pickle.loads(data))


class Worlds:
    """All worlds of a vector environment, and how they are spread over workers: in pieces, each called a `noun`."""

    noun = "environment"
    prefix = ""
    """What `choice` begins with."""

    def __init__(
        self, group: Callable[..., Group], pieces: Sequence[Any], sizes: Sequence[int], settings: GroupSettings
    ) -> None:
        self._group, self._pieces, self._sizes, self._settings = group, pieces, sizes, settings
        self.count = len(pieces)
        self.global_rng = settings.global_rng
        self.sample: Callable[[], Any] = pieces[0]

    def shares(self, workers: int, relief: int) -> list[GroupFactory]:
        """Split the pieces evenly; the last worker, which may be the caller, has `relief` fewer than the others."""
        least, more = divmod(self.count + relief, workers)
        counts = [least + (index < more) for index in range(workers)]
        counts[-1] -= relief
        shares, begin, first = [], 0, 0
        for count in counts:
            end = begin + count
            slots = range(first, first + sum(self._sizes[begin:end]))
            shares.append(GroupFactory(self._group, self._pieces[begin:end], slots, self._settings))
            begin, first = end, slots.stop
        return shares


class Singles(Worlds):
    """Worlds one by one."""

    def __init__(self, makers: Sequence[Maker], settings: GroupSettings) -> None:
        super().__init__(EnvGroup, makers, [1] * len(makers), settings)


def block_sizes(count: int, blocks: int | None = None) -> list[int]:
    """Split `count` worlds into blocks: by their number alone, because random streams are a block's own."""
    blocks = blocks or min(MOST_BLOCKS, max(1, count // BLOCK_ROWS))
    least, more = divmod(count, blocks)
    return [least + (index < more) for index in range(blocks)]


class Blocks(Worlds):
    """Worlds that are batched already, in blocks of so many; the caller's share is as large as any other."""

    noun = "block"

    def __init__(self, maker: BlockMaker, sizes: Sequence[int], settings: GroupSettings) -> None:
        super().__init__(partial(BatchedGroup, maker), sizes, sizes, settings)
        self.maker, self.sample = maker, partial(maker, sizes[0])
        self.prefix = f"vectorized, in {len(sizes)} block{'s' if len(sizes) > 1 else ''}: "

    def shares(self, workers: int, relief: int) -> list[GroupFactory]:
        return super().shares(workers, 0)


class GroupService:
    """Answers for a group of worlds."""

    def __init__(self, port: Port, group: Group) -> None:
        self._port, self._group = port, group
        port.place = self._group.place
        if port.pickles:
            port.mail = _BlamingMail(port.mail, self._blame)
        self._asked: Sequence[int] = ()
        began = time.perf_counter()
        self._group.build()
        self._build_seconds = time.perf_counter() - began
        self._observations, self._actions = self._group.layout, self._group.action_layout
        # Which single worlds get as plain numbers: nobody can keep them, and see the next ones.
        self._numbers = isinstance(group, EnvGroup) and self._actions.only is not None and not self._actions.only.shape
        self._rows: list[Rows] = []
        self._buffers: Buffers | None = None
        self._info_buffer: InfoBuffer | None = None
        self._shared = self._records = True
        self._loose: list[list[Any]] = [[None] * group.count for _ in self._observations.loose]
        self._changed: list[tuple[int, int, Any]] = []

    def close(self) -> None:
        """Close every world, even if one fails to; then raise what the first one raised."""
        group, failed = self._group, []
        group.show_starts(memoryview(bytearray(8 * group.count)).cast("q"))  # or it would keep the arrays of all slots
        for unit in group.units:
            try:
                group.close(unit)
            except Exception as error:  # noqa: BLE001  the others must be closed all the same
                failed.append((group.first + unit.start, error))
        if failed:
            group.turn_to(failed[0][0])
            raise failed[0][1]

    def handle(self, message: Any) -> object:
        group = self._group
        match message:
            case messages.Step(slots, actions, buffer):
                indices = group.everyone if slots is None else [slot - group.first for slot in slots]
                return self._with_rows(group.step(indices, actions, self._rows[buffer]), buffer, indices)
            case messages.Reset(resets, buffer):
                indices = [how.slot - group.first for how in resets]
                return self._with_rows(group.reset(resets, self._rows[buffer]), buffer, indices)
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
            case messages.LookAtGlobals(names):
                return group.classes() if names is None else globals_here(names)
            case messages.TellNext(episodes):
                for slot, episode in episodes.items():
                    group.tell_next(slot - group.first, episode)
                return None
            case messages.Restore() | messages.RecordSoon():
                return self._restore_or_record(message)
            case Attach():
                return self._attach(message)
            case messages.Describe():
                return replace(group.describe(), seconds=self._build_seconds)
            case _:
                raise AssertionError(f"no such message: {message!r}")

    def _restore_or_record(self, message: messages.Restore | messages.RecordSoon) -> object:
        if isinstance(message, messages.RecordSoon):
            self._group.record_soon()
            return None
        self._port.muted = True
        try:
            return Restorer(self._group, self._port.beat).restore(message.plans)
        finally:
            self._port.muted = False
            self._group.record(self._records)

    def signal(self, code: int) -> object:
        buffer = code % MOST_BUFFERS
        group = self._group
        assert self._buffers is not None
        if code < MOST_BUFFERS:
            actions = self._take_actions(slice(None))
            extras = group.step(group.everyone, actions, self._rows[buffer])
            if extras is not None and self._info_buffer is not None:
                extras = self._lay_down(extras, self._info_buffer)
        else:
            indices = stepped_by(code)
            extras = group.step(indices, self._take_actions(indices), self._rows[buffer])
        return self._with_changed(extras) if self._changed else extras

    def record(self, on: bool) -> None:
        """Keep points to restore slots from, or not."""
        self._records = on
        self._group.record(on)

    def step_all(self, given: tuple[Any, int]) -> tuple[Extras | None, bool]:
        """Step all worlds for a caller in whose thread this runs, with an action for each that nobody else has.

        Returns what else there is to tell, and whether an episode may have ended.
        """
        actions, buffer = given
        group = self._group
        extras = group.step(group.everyone, actions, self._rows[buffer])
        return self._with_changed(extras) if self._changed else extras, group.ended

    def _with_changed(self, extras: Extras | None) -> Extras:
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
            for slot, name, value in _parts_of(answer, self._observations):
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

    def _take_actions(self, rows: slice | list[int]) -> Any:
        assert self._buffers is not None
        if self._numbers:
            return self._buffers.actions[0][rows]
        # A copy: worlds may keep their action, and the caller writes the next ones into these arrays.
        return as_actions(self._actions, [array[rows].copy() for array in self._buffers.actions])

    def _with_rows(self, extras: Extras | None, buffer: int, indices: Sequence[int]) -> Extras:
        """Add what does not lie in shared memory."""
        extras = self._with_changed(extras)
        if not self._shared:
            assert self._buffers is not None
            extras.arrays = [array[list(indices)] for array in self._buffers.results(buffer)]
        return extras

    def _attach(self, message: Attach) -> StepAlone | None:
        """Take the arrays; return how a caller who has all worlds itself steps them, if it gave its own."""
        group, layouts = self._group, (self._observations, self._actions)
        if message.fields is None:
            self._shared = False
            shapes = other_shapes(self._actions, group.count) + buffer_shapes(self._observations, group.count) * BUFFERS
            self._buffers = Buffers.of([np.zeros(shape, dtype) for shape, dtype in shapes], *layouts)
        else:
            own = slice(group.first, group.first + group.count)
            arrays = [array[own] for array in self._port.arena.view(message.fields)]
            self._buffers = message.buffers or Buffers.of(arrays, *layouts)
            if self._port.pickles and self._buffers.info_room is not None:
                self._info_buffer = InfoBuffer(group.first, self._buffers.info_room)
        b = self._buffers
        group.show_starts(memoryview(cast(Any, b.starts)).cast("B").cast("q"))
        self._rows = [
            Rows.of(
                self._observations.target(b.observations[k], self._put_loose, group.refuse),
                b.rewards[k],
                b.terminated[k],
                b.truncated[k],
            )
            for k in range(len(b.observations))
        ]
        if message.buffers is None:
            return None
        assert isinstance(group, BatchedGroup)
        for k, rows in enumerate(self._rows):
            rows.hand_over = partial(message.buffers.hand_over, k, self._observations)
        return group.step_alone

    def _put_loose(self, leaf: int, i: int, value: Any) -> None:
        # Texts seldom change within an episode, and most steps then need no mail at all.
        last = self._loose[leaf][i]
        if type(value) is str and last == value:
            return
        self._loose[leaf][i] = value
        self._changed.append((leaf, self._group.first + i, value))


class _BlamingMail:
    """A worker's mail that calls `blame(value, error)` with an answer that could not be sent.

    A pickle of all slots' infos says what is wrong with one of them, but not with whose: only who looks at each finds out.
    """

    def __init__(self, mail: Mail, blame: Callable[[object, Exception], None]) -> None:
        self._mail, self._blame = mail, blame

    def send(self, value: object, number: int = 0) -> None:
        try:
            self._mail.send(value, number)
        except Exception as error:
            if isinstance(value, Reply):
                self._blame(value.value, error)
            raise

    def receive(self, number: int) -> Any:
        return self._mail.receive(number)


def _parts_of(extras: Extras, observations: SpaceLayout) -> Iterator[tuple[int, str, Any]]:
    """Yield all that may not be picklable in what a reset or a step has to say: slot, name and value."""
    infos = extras.infos.entries() if isinstance(extras.infos, BatchInfos) else extras.infos
    if isinstance(infos, list):
        for slot, info in infos:
            yield slot, "info", info
    for leaf, slot, value in extras.objects:
        yield slot, f"observation{observations.loose[leaf].name}", value
