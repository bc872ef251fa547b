"""GroupService: a group behind a worker's port; the only code that knows both arrays and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.envs import messages
from stretto.envs.blame import BlamingMail, parts_of, unpicklable
from stretto.envs.group import EnvGroup, Rows
from stretto.envs.info_buffer import BOARD_BYTES, InfoBuffer
from stretto.envs.infos import Table
from stretto.envs.messages import Attach, Built, Extras
from stretto.envs.restorer import Restorer
from stretto.envs.slot import GroupSettings, Maker
from stretto.errors import InvalidOutput
from stretto.spaces import Array, SpaceLayout
from stretto.workers.base import Port, Start
from stretto.workers.control import BEAT, INFOS, KNOWN, POSITION

STEP_ALL = 0
"""Signal: step every world; `STEP_ALL + buffer`. A step of one world is `2 * (i + 1) + buffer`."""

BUFFERS = 2


@dataclass(frozen=True, slots=True)
class GroupFactory:
    """Builds a group inside a worker."""

    makers: Sequence[Maker]
    first: int
    settings: GroupSettings

    def __call__(self, port: Port) -> GroupService:
        return GroupService(port, self.makers, self.first, self.settings)


def array_shapes(
    observations: SpaceLayout, actions: SpaceLayout, count: int
) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return the arrays of `count` slots: twice observations, rewards and both flags, then the actions, and a board."""
    flag = np.dtype(np.bool_)
    once = [*observations.shapes(count), ((count,), np.dtype(np.float64)), ((count,), flag), ((count,), flag)]
    return [*once * BUFFERS, *actions.shapes(count), ((count, BOARD_BYTES), np.dtype(np.uint8))]


@dataclass(slots=True)
class Buffers:
    """The arrays of `array_shapes`, by role."""

    observations: list[list[Array]]
    rewards: list[Array]
    terminated: list[Array]
    truncated: list[Array]
    actions: list[Array]
    board: Array | None = None

    @classmethod
    def of(cls, arrays: list[Array], leaves: int) -> Buffers:
        size = leaves + 3
        sets = [arrays[b * size : (b + 1) * size] for b in range(BUFFERS)]
        return cls(
            observations=[s[:leaves] for s in sets],
            rewards=[s[leaves] for s in sets],
            terminated=[s[leaves + 1] for s in sets],
            truncated=[s[leaves + 2] for s in sets],
            actions=arrays[BUFFERS * size : -1],
            board=arrays[-1],
        )

    def part(self, first: int, count: int) -> Buffers:
        """Return the rows of some slots, as views."""
        span = slice(first, first + count)
        return Buffers(
            observations=[[a[span] for a in arrays] for arrays in self.observations],
            rewards=[a[span] for a in self.rewards],
            terminated=[a[span] for a in self.terminated],
            truncated=[a[span] for a in self.truncated],
            actions=[a[span] for a in self.actions],
            board=None if self.board is None else self.board[span],
        )


class GroupService:
    """Answers for a group of worlds."""

    def __init__(self, port: Port, makers: Sequence[Maker], first: int, settings: GroupSettings) -> None:
        self._port = port
        self._group = EnvGroup(makers, first, settings, port.index, port.words[POSITION : POSITION + 1])
        port.place = self._group.place
        if port.crosses_processes:
            port.mail = BlamingMail(port.mail, self._blame)
        self._asked: Sequence[int] = ()
        self._group.build()
        env = self._group.slots[0].env
        self._observations = self._group.layout
        self._actions = SpaceLayout(env.action_space)
        self._scalar_actions = not self._actions.loose and [
            (leaf.path, leaf.shape) for leaf in self._actions.fixed
        ] == [((), ())]
        self._rows: list[Rows] = []
        self._buffers: Buffers | None = None
        self._board: InfoBuffer | None = None
        self._shared = True
        self._loose: list[list[Any]] = [[None] * len(makers) for _ in self._observations.loose]
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
            case messages.NextTasks(tasks):
                for slot, by_episode in tasks.items():
                    group.slots[slot - group.first].tasks.update(by_episode)
                return None
            case messages.Restore(plans):
                return self._restore(plans)
            case Attach():
                self._attach(message)
                return None
            case messages.Describe():
                return self._built()
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
            if extras is not None and self._board is not None:
                extras = self._lay_down(extras, self._board)
        else:
            i = (code >> 1) - 1
            extras = group.step([i], self._take_actions(slice(i, i + 1)), self._rows[buffer])
        if self._changed:
            extras = extras or Extras()
            extras.objects, self._changed = self._changed, []
        return extras

    def _lay_down(self, extras: Extras, board: InfoBuffer) -> Extras | None:
        """Lay infos on the board if they fit; return what is left to be sent."""
        if isinstance(extras.infos, Table):
            laid = board.put(extras.infos, self._port.serving, self._port.words[KNOWN])
            if isinstance(laid, int):
                self._port.words[INFOS] = laid
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

    def _built(self) -> Built:
        env = self._group.slots[0].env
        return Built(
            observation_space=env.observation_space,
            action_space=env.action_space,
            metadata=dict(env.metadata),
            render_mode=env.render_mode,
            spec=env.spec,
            agents=getattr(env, "kinds", None),
        )

    def _attach(self, message: Attach) -> None:
        group, leaves = self._group, len(self._observations.fixed)
        if message.fields is None:
            self._shared = False
            shapes = array_shapes(self._observations, self._actions, group.count)
            self._buffers = Buffers.of([np.zeros(shape, dtype) for shape, dtype in shapes], leaves)
        else:
            arrays = self._port.arena.view(message.fields)
            self._buffers = Buffers.of(arrays, leaves).part(group.first, group.count)
            if self._port.crosses_processes and self._buffers.board is not None:
                self._board = InfoBuffer(group.first, self._buffers.board)
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
            return Restorer(self._group, self._port.words[BEAT : BEAT + 1]).restore(plans)
        finally:
            self._port.muted = False
