"""Bringing a slot of a new worker to where its lost world was, by doing again what was done to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from stretto.envs.group import EnvGroup, Rows
from stretto.envs.messages import Call, ResetSlot, Restored, SlotPlan
from stretto.spaces import SpaceLayout


class _Mismatch(Exception):
    """The replayed world is not where the lost one was."""


class Restorer:
    """Restores the slots of a fresh group; `beat` is called with every step, as a sign of life."""

    def __init__(self, group: EnvGroup, beat: Callable[[], None]) -> None:
        self._group, self._beat = group, beat
        self._seen: Any = None
        self._stepped = False
        self._replayed = 0
        self._actions = SpaceLayout(group.slots[0].env.action_space)
        count = group.count
        self._scratch = Rows.of(self, np.zeros(count), np.zeros(count, bool), np.zeros(count, bool))

    def __setitem__(self, i: int, observation: Any) -> None:
        self._seen = observation

    def restore(self, plans: list[SlotPlan]) -> Restored:
        """Restore every slot that has a plan; say which ones had to be given up."""
        lost: dict[int, str] = {}
        for plan in plans:
            slot = self._group.slots[plan.slot - self._group.first]
            slot.recording = False
            reason = self._restore_slot(plan)
            slot.recording = True
            if reason is not None:
                lost[plan.slot] = reason
        return Restored(self._replayed, lost)

    def _restore_slot(self, plan: SlotPlan) -> str | None:
        i = plan.slot - self._group.first
        slot = self._group.slots[i]
        reason = plan.reason
        for number, attempt in enumerate(plan.attempts):
            if number:
                slot.rebuild()
            try:
                self._do_all(i, attempt.before)
                self._begin(i, attempt.reset)
                self._do_all(i, attempt.after)
                self._compare(i, plan)
                return None
            except _Mismatch as mismatch:
                reason = str(mismatch)
            except Exception as error:  # noqa: BLE001  it did not raise before, so this is not the same world again
                reason = f"the world does not repeat itself: replayed, it raised {error!r}"
        if plan.attempts:
            slot.rebuild()
        self._do_all(i, plan.changes)
        if reason is None:  # it was never reset, so that nothing is lost
            return None
        self._group.give_up_episode(i, plan, None if plan.is_over else reason)
        return None if plan.is_over else reason

    def _begin(self, i: int, how: ResetSlot) -> None:
        observation, _ = self._group.reset_slot(how)
        self._seen = observation
        self._stepped = False

    def _do_all(self, i: int, events: list[Any]) -> None:
        for event in events:
            self._do(i, event)

    def _do(self, i: int, event: Any) -> None:
        match event:
            case ("steps", actions):
                for action in self._rows(actions):
                    self._step(i, action)
            case ("reset", how):
                self._begin(i, how)
            case ("next", episode):
                self._group.tell_next(i, episode)
            case ("set", name, value):
                self._group.set_attr(name, i, value)
            case ("call", Call(name, args, kwargs)):
                self._group.call(name, args, kwargs, [i])
            case _:
                raise AssertionError(f"no such event: {event!r}")

    def _rows(self, actions: Any) -> Iterable[Any]:
        """Return the actions of steps that follow each other, one by one."""
        if self._actions.loose:
            return cast(list[Any], actions)
        return (self._actions.row(actions, (), k) for k in range(len(actions[0])))

    def _step(self, i: int, action: Any) -> None:
        self._replayed += 1
        self._stepped = True
        self._beat()
        self._group.step([i], [action], self._scratch)

    def _compare(self, i: int, plan: SlotPlan) -> None:
        if plan.expected is None:
            return
        observation, reward, terminated, truncated = plan.expected
        rows, layout = self._scratch, self._group.layout
        for leaf in layout.leaves:
            seen, wanted = leaf.get(self._seen), leaf.get(observation)
            same = _same_bytes(seen, wanted, leaf.dtype) if leaf.fixed else _same_objects(seen, wanted)
            if not same:
                raise _Mismatch(
                    f"the world does not repeat itself: replayed, observation{leaf.name} differs from the one seen before"
                )
        if not self._stepped:
            return  # reward and flags of the row are those of the step that ended the episode before
        flags = bool(rows.terminated[i]), bool(rows.truncated[i])
        if not np.array_equal(rows.rewards[i], reward, equal_nan=True) or flags != (terminated, truncated):
            raise _Mismatch("the world does not repeat itself: replayed, its reward or its end differs")


def _same_bytes(seen: Any, wanted: Any, dtype: np.dtype[Any]) -> bool:
    return np.asarray(seen).astype(dtype).tobytes() == np.asarray(wanted).astype(dtype).tobytes()


def _same_objects(seen: Any, wanted: Any) -> bool:
    try:
        return bool(np.all(seen == wanted))
    except (ValueError, TypeError):  # no meaningful comparison: the fixed leaves have to do
        return True
